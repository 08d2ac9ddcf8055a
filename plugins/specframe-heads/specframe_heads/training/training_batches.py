"""Batches of texts with whatever a target computes of them.

Tensor names: B texts, T their tokens, V vocabulary, D size of a hidden state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from transformers import PreTrainedModel

from specframe.model.decoder_layers import HiddenStates
from specframe_heads.training.continuations import ContinuationText


@attrs.frozen(eq=False)
class Lesson:
    """A batch of texts, as their target reads them."""

    ids_BT: torch.Tensor
    """The tokens; shorter texts are filled up at their end."""
    known_BT: torch.Tensor
    """Where there are tokens and no padding."""
    own_BT: torch.Tensor
    """Where there are tokens of the target's own."""
    hidden: Mapping[int, torch.Tensor]
    """Hidden states (B, T, D), as :mod:`specframe.model.decoder_layers` numbers them."""
    logits_BTV: torch.Tensor
    """The target's."""

    @property
    def after_BT(self) -> torch.Tensor:
        """The token after each token but the last, (B, T - 1)."""
        return self.ids_BT[:, 1:]

    def ahead(self, values_BT: torch.Tensor, place: int) -> torch.Tensor:
        """Return values of the tokens ``place + 1`` after each token but the last, (B, T - 1, ...); past the end: padding."""
        return values_BT[:, 1:].roll(-place, dims=1)

    def counts(self, place: int) -> torch.Tensor:
        """Return for which tokens but the last the token ``place + 1`` places on is known, (B, T - 1), as numbers 0 and 1."""
        known_BT = self.known_BT[:, 1:].float()
        known_BT = known_BT.roll(-place, dims=1)
        known_BT[:, known_BT.shape[1] - place :] = 0
        return known_BT


class Reader:
    """Reads texts with a target, without a cache.

    Args:
        model: the target.
        layers: numbers of the hidden states to take.
    """

    def __init__(self, model: PreTrainedModel, layers: Sequence[int]) -> None:
        self._model, self._layers = model, tuple(layers)
        self._taps = HiddenStates(model, "the target")
        self._taps.check(self._layers)

    @torch.no_grad()
    def read(self, texts: Sequence[ContinuationText]) -> Lesson:
        """Return what the target computes of texts."""
        length, device = max(len(text.ids) for text in texts), next(self._model.parameters()).device
        ids_BT = torch.tensor([text.ids + [0] * (length - len(text.ids)) for text in texts], device=device)
        ends_B1 = torch.tensor([[len(text.ids)] for text in texts], device=device)
        starts_B1 = torch.tensor([[text.prompt] for text in texts], device=device)
        places_T = torch.arange(length, device=device)
        known_BT = places_T < ends_B1
        found = dict[int, torch.Tensor]()
        with contextlib.ExitStack() as stack:
            for number in self._layers:
                module, take = self._taps.place(number)
                stack.enter_context(module.register_forward_hook(_putting(found, number, take)))
            logits_BTV = self._model(input_ids=ids_BT, attention_mask=known_BT.long(), use_cache=False).logits
        return Lesson(ids_BT, known_BT, known_BT & (places_T >= starts_B1), found, logits_BTV)


def _putting(found: dict[int, torch.Tensor], number: int, take: Any) -> Any:
    def put(_: torch.nn.Module, given: tuple[Any, ...], output: Any) -> None:
        found[number] = take(given, output)

    return put


def drawn(texts: Sequence[ContinuationText], count: int, seed: int, step: int) -> list[ContinuationText]:
    """Return ``count`` texts of similar length, the same ones for the same seed and step.

    A text is drawn, and with it its neighbours by length: so little of a batch is padding. ``texts`` are sorted by length.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    start = int(torch.randint(len(texts), (), generator=generator))
    first = max(0, min(start - 4 * count, len(texts) - 8 * count))
    near = torch.randperm(min(8 * count, len(texts)), generator=generator)[:count]
    return [texts[first + place] for place in near.tolist()]
