"""What runs on a GPU itself: kernels in Triton, and in Gluon for Hopper GPUs."""
