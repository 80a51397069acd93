"""Compiled loops (extra `fast`): a compiler of lesson lines, by Numba."""
