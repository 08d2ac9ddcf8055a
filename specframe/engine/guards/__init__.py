"""Guards around strategies, one module for roles that belong together; :mod:`specframe.engine.guard` puts them there."""
