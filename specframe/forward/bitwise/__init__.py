"""Forwards in which a token's logits do not depend, to the bit, on what else is computed with it.

A kernel adds the same numbers in another order when a matrix has other rows, or a sum other neighbours. Here kernels are handed
tensors of one shape each, whatever the batch, the tokens fed and the slots attended to.
"""
