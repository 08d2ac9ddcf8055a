"""Forwards in which a token's logits do not depend, to the bit, on what else is computed with it.

A kernel adds the same numbers in another order when a matrix has other rows, or a sum other neighbours. Here kernels are handed
tensors of one shape each, whatever the batch, the tokens fed and the slots attended to.
"""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, hookimpl


@hookimpl
def specframe_register_options(register: Register) -> None:
    register("bitwise", "specframe_bitwise.equality:Bitwise")
