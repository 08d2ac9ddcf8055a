"""Training of heads on a target's own continuations."""
