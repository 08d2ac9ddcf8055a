"""Attention over a KV store: transformers' attention interface, and the backends that attend."""
