"""Residual networks near a GPU's limit of speed: a chain of links, each a convolution with the norm and ReLU after it.

`residual` is the chain, `links` defines one link and chooses for a device, `fused_links` does a link in one kernel;
`*_convolution` launch kernels, and `*_kernels` run on the GPU.
"""
