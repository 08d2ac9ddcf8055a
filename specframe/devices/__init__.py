"""Kinds of devices, and what each of them can do."""
