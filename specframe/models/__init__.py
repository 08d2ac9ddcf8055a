"""Models by name: aliases, pairs, files, tokenizers."""
