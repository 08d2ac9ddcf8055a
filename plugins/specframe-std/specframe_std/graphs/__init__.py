"""Forwards and whole rounds that are captured as graphs, which the host launches in one call each."""
