"""Forwards of a transformers model: explicit positions and masks, caches, attention, captured graphs."""
