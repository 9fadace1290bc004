"""How a network is run: device, precision, batches, modes and random numbers."""
