"""Single files that are written safely, and the facts about what made them."""
