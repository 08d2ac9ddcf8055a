"""Layers as straight code: a forward is traced, and run as pieces that may be compiled."""
