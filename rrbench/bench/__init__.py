"""Speed on this device: rrbench and other implementations, on the same network and images."""
