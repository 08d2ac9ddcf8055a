"""Plugins: how they are found, made and composed."""
