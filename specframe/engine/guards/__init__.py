"""Guards around strategies. :mod:`specframe.engine.guards.guard_table` says what they check."""
