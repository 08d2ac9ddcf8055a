"""Constraints for tests, and any constraint as a logits processor of transformers, for decoding one token at a time."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any

import attrs
import numpy as np
import torch
from transformers import LogitsProcessor

from specframe.contracts.constraints import Constraint, Drafted, pack_masks
from specframe.contracts.requests import Request


@attrs.frozen
class Vocabulary:
    """What the fakes know of a request: the number of token ids, and those that end it."""

    size: int
    stops: frozenset[int]

    def allowed(self, ids: Any) -> np.ndarray:
        """Return whether each token is among ``ids`` or ends the sequence, (V,)."""
        found = np.zeros(self.size, dtype=bool)
        found[[*ids, *self.stops]] = True
        return found


class Even:
    """Allows even token ids and those that end the sequence."""

    def begin(self, request: Request, vocabulary: int, tokenizer: Any) -> Vocabulary:
        """Return the same state for every place."""
        return Vocabulary(vocabulary, request.stop_token_ids)

    def masks(self, states: Rows[Vocabulary], drafted: Drafted) -> torch.Tensor:
        """Return one mask for all places."""
        allowed = [[one.allowed(range(0, one.size, 2))] * drafted.count for one in states]
        return pack_masks(np.array(allowed))

    def advance(self, state: Vocabulary, tokens: list[int]) -> Vocabulary:
        """Return the state."""
        return state


@attrs.frozen
class Sum:
    """The state of :class:`DigitSum`."""

    vocabulary: Vocabulary
    last: int = 0
    total: int = 0


class DigitSum:
    """Allows a token whose last digit differs from the last token's, and a stop id where the digits' sum is a multiple.

    The state depends on every generated token: one too many or too few, or one of another row, and other tokens come out. After a
    token that is not allowed nothing is allowed.

    Options:
        base: the digits are those of ids in this base.
        every: the sum of digits has to be a multiple of it where a sequence ends.
    """

    def __init__(self, base: int = 5, every: int = 3) -> None:
        self._base, self._every = base, every

    def begin(self, request: Request, vocabulary: int, tokenizer: Any) -> Sum:
        """Return the state before the first token."""
        return Sum(Vocabulary(vocabulary, request.stop_token_ids))

    def masks(self, states: Rows[Sum], drafted: Drafted) -> torch.Tensor:
        """Return the masks, after walking each path from the row's state on."""
        found = [[self._mask(state, path) for path in drafted.paths(row)] for row, state in enumerate(states)]
        return pack_masks(np.array(found))

    def advance(self, state: Sum, tokens: list[int]) -> Sum:
        """Return the state after tokens that are allowed; raise ValueError for another one."""
        for token in tokens:
            if not self._allowed(state)[token]:
                raise ValueError(f"expected a token that is allowed, got {token}")
            state = attrs.evolve(state, last=token % self._base, total=state.total + token % self._base)
        return state

    def _mask(self, state: Sum, path: list[int]) -> np.ndarray:
        try:
            return self._allowed(self.advance(state, path))
        except ValueError:
            return np.zeros(state.vocabulary.size, dtype=bool)

    def _allowed(self, state: Sum) -> np.ndarray:
        ids = np.arange(state.vocabulary.size)
        stops = [*state.vocabulary.stops]
        allowed: np.ndarray = ids % self._base != state.last
        allowed[stops] = state.total % self._every == 0
        return allowed


class OneByOne(LogitsProcessor):
    """A constraint as a logits processor: its state is made from the start for each token."""

    def __init__(self, constraint: Constraint, request: Request, vocabulary: int, tokenizer: Any = None) -> None:
        self._constraint, self._request, self._vocabulary = constraint, request, vocabulary
        self._tokenizer = tokenizer

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        """Return the scores (1, V), minus infinity for tokens that are not allowed."""
        generated = input_ids[0, len(self._request.prompt_ids) :].tolist()
        state = self._constraint.begin(self._request, self._vocabulary, self._tokenizer)
        for token in generated:
            state = self._constraint.advance(state, [token])
        nothing = np.zeros((1, 0), dtype=np.int64)
        bits = self._constraint.masks([state], Drafted(nothing, nothing, 1))[0, 0].numpy()
        allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: scores.shape[1]].astype(bool)
        return scores.masked_fill(~torch.from_numpy(allowed).to(scores.device), float("-inf"))
