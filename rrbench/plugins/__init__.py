"""What is installed, with which settings, and what it must keep to."""
