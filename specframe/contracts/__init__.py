"""What a plugin author reads: the types that strategies are given and return, and the roles as protocols."""
