"""``specframe plugins new``: a package with a working strategy, from a template of its role."""
