"""The standard strategies that suites combine a plugin's strategy with: those of specframe-std, which the suites need."""

from __future__ import annotations

ALIGNMENTS = ("ragged", "eqspec", "exspec")
"""The lossless ones."""

FOR_TREES = (*ALIGNMENTS, "rollback")
"""Those that place trees."""

SCHEDULERS = ("fixed", "continuous", "same-length,window=4")

READING_IN_PIECES = "continuous,piece=4"
"""A scheduler that has prompts read four tokens at a time."""

ALWAYS_THE_SAME = "gumbel"
"""An acceptance rule whose sampled tokens are the same whatever was drafted."""

KEEPING = "paged,block=2,stride=2,share=on"
"""A KV backend that keeps keys, values and states of what prompts begin with."""

STORE = "slab"
"""A KV backend that writes any slot, and whose memory never moves."""
