"""A store and a layout for caches of any owner: one preallocated tensor, in which a token's slot is its position."""
