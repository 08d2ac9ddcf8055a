"""Drafts of given acceptance from any head drafter, for tests: tokens are replaced, and what the head gave is kept.

:func:`scripted` replaces each token of a chain when it is chosen, so that the head goes on from it, and keeps the logits.
:func:`steered` replaces nodes of a finished draft, chain or tree, and keeps the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import attrs
import torch
from specframe_heads.head import HeadDrafter
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_std.verifiers.chain import ChainVerifier

from specframe.contracts.drafts import Budget, Draft, Scores
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch


@attrs.frozen(eq=False)
class ScriptedCalls:
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
    made: HeadDrafter,
    seen: list[ScriptedCalls],
    truth: Sequence[Sequence[int]] = (),
    right: Callable[[int], bool] | None = None,
) -> Any:
    """Return a drafter with right tokens of the target in some places and wrong ones elsewhere.

    Args:
        made: the drafter.
        seen: takes the logits of every place.
        truth: the target's continuation of each request, by index.
        right: whether the token at the n-th place after a prompt is right, or None if the drafter's own tokens are left.
    """
    usual, propose = made.choose, made.propose

    def proposed(batch: Batch, budget: Budget) -> Draft:
        first = len(seen)
        draft = propose(batch, budget)
        seen[first:] = [attrs.evolve(one, count=draft.depth) for one in seen[first:]]
        return draft

    def choose(batch: Batch, offset: int, drafted_BK: torch.Tensor, logits_B1V: torch.Tensor) -> Any:
        tokens_B1, used = usual(batch, offset, drafted_BK, logits_B1V)
        for row, sequence in enumerate(batch.sequences):
            length = int(batch.lengths_B[row])  # the host may not know it, nor the last tokens
            place = length - len(sequence.request.prompt_ids) + offset
            if length >= sequence.limit - 1:
                continue  # a row that has ended may take part once more
            ids = batch.tokens_BS[row, :length].tolist()
            seen.append(ScriptedCalls(ids, drafted_BK[row].tolist(), 0, logits_B1V[row, 0].clone()))
            if right is None:
                continue
            own = [*truth[sequence.request.index], *[0] * 16]
            tokens_B1[row] = own[place] if right(place) else (own[place] + 1) % logits_B1V.shape[-1]
        return tokens_B1, used

    made.choose, made.propose = choose, proposed  # type: ignore[method-assign]
    return made


@attrs.frozen
class Drafted:
    """A draft of one row."""

    depth: int
    """The depth that was asked for."""
    tokens: list[int]
    """The tokens of its nodes."""
    parents: list[int]
    first_V: torch.Tensor = attrs.field(eq=False)
    """The logits that the head gave after the row's last token."""


def steered(
    made: HeadDrafter,
    drafts: dict[tuple[int, ...], Drafted],
    truth: Callable[[Request], Sequence[int]],
    right: Callable[[int], bool],
) -> Any:
    """Return a drafter one path of whose drafts has the target's tokens, as far as places are to be right.

    The path takes the first child of a node and the last in turn, so that it lies in unlike places of a tree.

    Args:
        made: the drafter.
        drafts: takes every row's draft as the head made it, by the request's key and the row's length.
        truth: the target's continuation of a request.
        right: whether the token at the n-th place after a prompt is right.
    """
    propose, full = made.propose, DraftVocabulary.full

    def proposed(batch: Batch, budget: Budget) -> Draft:
        logits = list[torch.Tensor]()

        def noted(*given: Any) -> torch.Tensor:
            logits.append(full(*given))
            return logits[-1]

        with patch.object(DraftVocabulary, "full", noted):
            draft = propose(batch, budget)
        if not draft.nodes:
            return draft
        tokens_BN = draft.tokens_BN.clone()
        for row, sequence in enumerate(batch.sequences):
            parents = draft.above_BN[row].tolist()
            length = int(batch.lengths_B[row])  # the host may not know it
            given = budget.depth, draft.tokens_BN[row].tolist(), parents, logits[0][row, 0].cpu()
            drafts[*sequence.request.key, length] = Drafted(*given)
            place, own, node = length - len(sequence.request.prompt_ids), truth(sequence.request), -1
            while right(place) and place < len(own) and (children := places_of(parents, node)):
                node = children[-(place % 2)]
                for other in children:  # siblings stay unlike
                    if tokens_BN[row, other] == own[place]:
                        tokens_BN[row, other] = tokens_BN[row, node]
                tokens_BN[row, node] = own[place]
                place += 1
        return attrs.evolve(draft, tokens_BN=tokens_BN)

    made.propose = proposed  # type: ignore[method-assign]
    return made


def places_of(parents: list[int], node: int) -> list[int]:
    """Return the children of a node."""
    return [child for child, parent in enumerate(parents) if parent == node]


class Cramped(ChainVerifier):
    """A verifier that runs out of memory once, in its fifth round."""

    rounds = 0

    def score(self, batch: Batch, draft: Draft) -> Scores:
        """Score, or fail after the cache was written."""
        scores = super().score(batch, draft)
        self.rounds += 1
        if self.rounds == 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return scores
