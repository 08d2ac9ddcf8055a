"""States that take in one token after the other, so that their bits do not depend on what else is fed.

A token's operations are those on one row's state and on what the row has of the token: products and sums of numbers, which have one
result, and sums over one dimension. How many tokens are fed at once, as a chain or a tree, changes none of them. What is not real
leaves a state as it is: it is chosen, and not computed.

Tensor names carry their shape: B rows, T tokens, X the dimensions of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import torch

from specframe.contracts.states import Inputs

Take = Callable[..., torch.Tensor]
"""Returns the states after a token, (B, X), from those before and what they take in of it, (B, ...) each."""


@attrs.frozen(eq=False)
class RecurrenceSteps:
    """What a scan does, token by token."""

    take: Take
    inputs: Inputs
    """What the states take in of each token, (B, T, ...) each."""
    read: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Returns the outputs (B, ...) of the states after a token, and of what reads them."""
    queries: torch.Tensor
    """What reads the states after each token, (B, T, ...)."""
    outcome: Callable[[torch.Tensor], torch.Tensor]
    """Returns what the mixer's scan returns, from the outputs (B, T, ...)."""


def scanned(
    steps: RecurrenceSteps, before_BX: torch.Tensor, real_BT: torch.Tensor, parents_BT: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs (B, T, ...), and the states after the last token."""
    outputs, after_BX = list[torch.Tensor](), before_BX
    states = one_by_one(steps.take, before_BX, steps.inputs, real_BT, parents_BT)
    for after_BX, query in zip(states, steps.queries.unbind(1), strict=True):
        outputs.append(steps.read(after_BX, query))
    return torch.stack(outputs, dim=1), after_BX


def one_by_one(
    take: Take,
    before_BX: torch.Tensor,
    inputs: Inputs,
    real_BT: torch.Tensor,
    parents_BT: torch.Tensor | None = None,
) -> Iterator[torch.Tensor]:
    """Yield the states after each token, (B, X).

    Args:
        take: of one token.
        before_BX: the states before the block.
        inputs: what the states take in of each token.
        real_BT: which tokens they take in.
        parents_BT: the token that each token follows, -1: the one before the block, or None for the one before it.
    """
    rows, width = real_BT.shape
    last_BX, rows_B = before_BX, torch.arange(rows, device=real_BT.device)
    if parents_BT is not None:
        held_BTX = before_BX[:, None].repeat(1, width + 1, *(1,) * (before_BX.ndim - 1))
    for place in range(width):
        if parents_BT is not None:
            last_BX = held_BTX[rows_B, (parents_BT[:, place] + 1).expand(rows)]
        after_BX = take(last_BX, *(one[:, place] for one in inputs)).to(before_BX.dtype)
        last_BX = after_BX.where(real_BT[:, place].view(-1, *(1,) * (before_BX.ndim - 1)), last_BX)
        if parents_BT is not None:
            held_BTX[:, place + 1] = last_BX
        yield last_BX


def last(states: Iterator[torch.Tensor], before_BX: torch.Tensor) -> torch.Tensor:
    """Return the last of some states; those before if there is none."""
    after_BX = before_BX
    for after_BX in states:  # noqa: B007 - it is what is returned
        pass
    return after_BX
