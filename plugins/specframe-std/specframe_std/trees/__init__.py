"""Draft trees: their shapes, how drafters grow them, and the paths of rules through them."""
