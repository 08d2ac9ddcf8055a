"""KV backends, one module each."""
