"""Residual networks on a GPU near its limit: a chain of links, each a convolution with the norm and ReLU behind it.

`residual` is the chain, `links` what one does, `fused_links` the same in one kernel, `fastest` chooses; `*_convolution`
launch these, and `*_kernels` are what runs on the GPU.
"""
