"""Kinds of state that models of transformers keep: delta rules, selective scans, linear attention and short convolutions."""
