"""The CUDA engine: the fused kernels' sources, and what runs them."""
