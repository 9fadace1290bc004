"""How a network is run: device, precision, batches, modes, second looks and random numbers."""
