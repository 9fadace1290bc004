"""A row is held against its files, its network and, if asked, the attack run again."""
