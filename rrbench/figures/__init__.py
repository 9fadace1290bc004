"""Figures drawn with matplotlib from score files alone."""
