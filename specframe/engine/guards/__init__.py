"""Guards around strategies, one module for roles that belong together; :mod:`specframe.engine.guards.roles` puts them there."""
