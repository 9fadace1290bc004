"""Device, precision, batches, modes and randomness: how a network is asked."""
