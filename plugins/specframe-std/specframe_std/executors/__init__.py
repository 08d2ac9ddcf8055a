"""Executors of several processes."""
