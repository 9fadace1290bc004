"""The commands for authors of plugins: `rrbench new` and `rrbench check`."""
