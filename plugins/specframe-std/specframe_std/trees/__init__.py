"""Draft trees, for drafters and acceptance rules: their shapes, growth and paths, and the options that ask for them."""
