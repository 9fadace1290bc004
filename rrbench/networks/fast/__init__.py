"""Residual networks near a GPU's limit of speed: a chain of links, each a convolution with the norm and ReLU after it.

`residual` is the chain and chooses its links, `links` defines one link, `fused_links` does a link in one kernel;
`*_convolution` launch kernels, and `kernels` are what runs on the GPU.
"""
