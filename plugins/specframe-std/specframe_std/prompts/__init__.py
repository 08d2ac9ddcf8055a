"""Prompts from files, tables, data sets and benchmark sets: each is read while it is looped over."""
