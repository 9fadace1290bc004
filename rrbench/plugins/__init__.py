"""The installed plugins, their settings, and the rules that they must follow."""
