"""A draft's tokens chosen one after the other from logits that are there, or nearly so, all at once.

Tensor names carry their shape: B rows, K draft tokens, V vocabulary of the head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from specframe.contracts.drafts import Draft
from specframe.contracts.round import Batch
from specframe_heads.head import HeadDrafter


def chain(drafter: HeadDrafter, batch: Batch, count: int, logits: Callable[[int, torch.Tensor], torch.Tensor]) -> Draft:
    """Return a chain of ``count`` tokens per row, as the acceptance rule asks for them.

    Args:
        drafter: its vocabulary and its rule are used.
        batch: the rows.
        count: tokens per row, at least 1.
        logits: (place in the draft, the token before it (B,)) -> logits (B, V).
    """
    tokens, used = [batch.last_tokens(1)], list[torch.Tensor]()
    for place in range(count):
        drafted_BK = torch.cat(tokens, dim=1)[:, 1:]
        token_B1, logits_B1V = drafter.choose(batch, place, drafted_BK, logits(place, tokens[-1][:, 0])[:, None])
        tokens.append(token_B1)
        used += [] if logits_B1V is None else [logits_B1V]
    return Draft(torch.cat(tokens[1:], dim=1), torch.cat(used, dim=1) if used else None)
