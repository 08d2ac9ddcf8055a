"""Drafts of given acceptance from any head drafter: each chosen token is replaced, and the logits it came from are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.round import Batch
from specframe_heads.head import HeadDrafter


@attrs.frozen(eq=False)
class Seen:
    """Logits that a head gave for one place of one row's draft."""

    ids: list[int]
    """The row's tokens."""
    drafted: list[int]
    """The tokens of the draft before the place."""
    count: int
    """The tokens of the draft, those before the place among them."""
    logits_V: torch.Tensor
    """In the head's own vocabulary."""


def scripted(
    made: HeadDrafter, seen: list[Seen], truth: Sequence[Sequence[int]] = (), right: Callable[[int], bool] | None = None
) -> Any:
    """Return a drafter with right tokens of the target in some places and wrong ones elsewhere.

    Args:
        made: the drafter.
        seen: takes the logits of every place.
        truth: the target's continuation of each request, by index.
        right: whether the token at the n-th place after a prompt is right; None: the drafter's own tokens are left.
    """
    (
        usual,
        propose,
    ) = made.choose, made.propose

    def proposed(batch: Batch, budget: Budget) -> Draft:
        first = len(seen)
        draft = propose(batch, budget)
        seen[first:] = [attrs.evolve(one, count=draft.depth) for one in seen[first:]]
        return draft

    def choose(batch: Batch, offset: int, drafted_BK: torch.Tensor, logits_B1V: torch.Tensor) -> Any:
        tokens_B1, used = usual(batch, offset, drafted_BK, logits_B1V)
        for row, sequence in enumerate(batch.sequences):
            length = int(batch.lengths[row])
            place = length - len(sequence.request.prompt_ids) + offset
            ids = batch.tokens_BS[row, :length].tolist()
            seen.append(Seen(ids, drafted_BK[row].tolist(), 0, logits_B1V[row, 0].clone()))
            if right is None:
                continue
            own = [*truth[sequence.request.index], *[0] * 16]
            tokens_B1[row] = own[place] if right(place) else (own[place] + 1) % logits_B1V.shape[-1]
        return tokens_B1, used

    made.choose, made.propose = choose, proposed  # type: ignore[method-assign]
    return made
