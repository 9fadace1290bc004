"""Checks a row against its files, its network and, if asked, a repeated attack."""
