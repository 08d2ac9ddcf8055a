"""Memory plans: what fits into a budget, how fast it would be, and how little memory suffices."""
