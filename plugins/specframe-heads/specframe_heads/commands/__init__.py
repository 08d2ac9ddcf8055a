"""Commands of the heads."""
