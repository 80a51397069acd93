"""The CUDA kernels of the fused engine: their sources, and what joins them."""
