"""Compiling kernels with numba."""
