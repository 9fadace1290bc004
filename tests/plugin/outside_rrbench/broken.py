"""A table that cannot be loaded: it must disable itself and nothing else."""

raise ImportError("this plugin is broken on purpose")
