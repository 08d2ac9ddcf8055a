"""Attention backends, one module each, and their kernels."""
