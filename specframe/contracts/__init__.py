"""Contracts for plugin authors: the types that strategies get and return, and the roles as protocols."""
