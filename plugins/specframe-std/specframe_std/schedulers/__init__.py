"""Schedulers, one module each."""
