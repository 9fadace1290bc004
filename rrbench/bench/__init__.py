"""Speed, measured on the device at hand: ours against other people's, on the same network and images."""
