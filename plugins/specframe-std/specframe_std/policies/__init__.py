"""Draft-length policies, one module each."""
