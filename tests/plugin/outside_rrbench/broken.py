"""A table that cannot be loaded: only this table must be disabled."""

raise ImportError("this plugin is broken on purpose")
