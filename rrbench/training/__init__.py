"""A training becomes a checkpoint."""
