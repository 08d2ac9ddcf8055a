"""Block drafters: all tokens of a draft from one pass over a block of masks."""
