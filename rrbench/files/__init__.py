"""Single files, written safely, and what made them."""
