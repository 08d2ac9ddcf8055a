"""Scores under constraints: the states of sequences follow their tokens, and masks are asked for once for all rows of a constraint.

Tensor names carry their shape: B rows, A of them with one constraint, N draft tokens, T places of a row, V vocabulary, W numbers
and X bytes of a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch

from specframe.contracts.constraints import Constraint, Drafted
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch
from specframe.devices import kinds
from specframe.devices.kinds import constant, of
from specframe.devices.out_of_memory import out_of_memory
from specframe.errors import sentence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NONE_ALLOWED = "expected a token that it allows and that has a score, got none after the last token"
"""The error of a sequence whose constraint allows no token after its last one."""


@attrs.define(eq=False)
class Guide:
    """The constraint of one sequence, and its state as far as the sequence's tokens have been read."""

    constraint: Constraint
    request: Request
    vocabulary: int
    tokenizer: PreTrainedTokenizerBase | None
    state: Any = None
    read: int | None = None
    """Number of the sequence's tokens, prompt included, that the state represents, or None if it has not begun."""
    error: str | None = None
    """Why the constraint cannot go on with the sequence."""


def constrain(
    batch: Batch, drafted_BN: torch.Tensor, scores_BTV: torch.Tensor, parents_BN: torch.Tensor | None
) -> None:
    """Give tokens that constraints do not allow a score of minus infinity, in place; all tokens where a constraint has failed.

    Args:
        batch: the rows.
        drafted_BN: the draft tokens of each row.
        scores_BTV: the scores at the last T places of each row.
        parents_BN: the draft token that each draft token follows, -1: the row's last token; (B, N) or (1, N), or None for a chain.
    """
    guided: dict[int, dict[int, Guide]] = {}  # by constraint and row
    for row, sequence in enumerate(batch.sequences):
        if (guide := sequence.guide) is not None:
            guided.setdefault(id(guide.constraint), {})[row] = guide
    for held in guided.values():
        bits_ATW = masks_of(batch, held, drafted_BN, parents_BN, scores_BTV.shape[1])
        allowed_ATV = unpack_masks(bits_ATW, scores_BTV.device)[..., : scores_BTV.shape[2]]
        if len(held) == len(batch):
            scores_BTV.masked_fill_(~allowed_ATV, float("-inf"))
        else:
            rows_A = constant(tuple(held), scores_BTV.device)
            scores_BTV[rows_A] = scores_BTV[rows_A].masked_fill(~allowed_ATV, float("-inf"))


def masks_of(
    batch: Batch, held: dict[int, Guide], drafted_BN: torch.Tensor, parents_BN: torch.Tensor | None, count: int
) -> torch.Tensor:
    """Return the masks of rows that have one constraint, (A, T, W); nothing is allowed in rows in which it has failed."""
    for row, guide in held.items():
        attempt([guide], follow, guide, batch.tokens[row, : batch.lengths[row]])
    guides = [*held.values()]
    bits_ATW = torch.zeros(len(held), count, -(-guides[0].vocabulary // 32), dtype=torch.int32)
    if sound := [place for place, guide in enumerate(guides) if guide.error is None]:
        asked = [guides[place] for place in sound]
        drafted = on_host(drafted_BN, parents_BN, [[*held][place] for place in sound], count)
        made = attempt(asked, asked[0].constraint.masks, [guide.state for guide in asked], drafted)
        if made is not None:
            bits_ATW[sound] = made
    for row, guide in held.items():
        batch.sequences[row].error = guide.error
    return bits_ATW


def attempt(guides: list[Guide], call: Callable[..., Any], *given: Any) -> Any:
    """Return what a call of a constraint returns, or None if it raises, and note why for the rows that it was made for.

    Lack of memory is raised: the round is tried again with fewer rows.
    """
    try:
        return call(*given)
    except Exception as error:  # a third party's method may raise anything
        if isinstance(error, MemoryError | Warning) or (isinstance(error, RuntimeError) and out_of_memory(error)):
            raise
        for guide in guides:
            guide.error = sentence(error)
        return None


def follow(guide: Guide, tokens: np.ndarray) -> None:
    """Bring a guide's state up to the tokens of its sequence, prompt included; one that has failed stays as it is."""
    if guide.error is not None:
        return
    if guide.read is None:
        guide.state = guide.constraint.begin(guide.request, guide.vocabulary, guide.tokenizer)
        guide.read = len(guide.request.prompt_ids)
    if new := tokens[guide.read :].tolist():
        read, guide.read = guide.read, None  # a call that raises may have changed the state, which is made again then
        guide.state = guide.constraint.advance(guide.state, new)
        guide.read = read + len(new)


def on_host(drafted_BN: torch.Tensor, parents_BN: torch.Tensor | None, rows: list[int], count: int) -> Drafted:
    """Return draft tokens of some rows on the host."""
    nodes = drafted_BN.shape[1]
    parts = {"tokens": drafted_BN} if nodes else {}
    if nodes and parents_BN is not None:
        parts["parents"] = parents_BN.expand_as(drafted_BN)
    found = kinds.on_host(parts) if parts else {"tokens": np.zeros(tuple(drafted_BN.shape), dtype=np.int64)}
    tokens = found["tokens"][rows]
    above = found["parents"][rows] if "parents" in found else np.arange(-1, nodes - 1)[None]
    return Drafted(tokens, np.broadcast_to(above, tokens.shape), count)


def unpack_masks(bits_ATW: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return masks as whether each token is allowed, bool (A, T, 32 W), on a device."""
    bytes_ATX = bits_ATW.contiguous().view(torch.uint8)
    if device.type != "cpu":
        bytes_ATX = of(device).pinned(bytes_ATX).to(device, non_blocking=True)
    places_8 = constant((0, 1, 2, 3, 4, 5, 6, 7), device, torch.uint8)
    return (bytes_ATX[..., None].bitwise_right_shift(places_8) & 1).flatten(-2).bool()
