"""Residual networks on a GPU near its limit: a chain of links, each a convolution with the norm and ReLU behind it.

`residual` is the chain, `links` what one does, `fused_links` the same in one kernel; `*_kernels` are those kernels.
"""
