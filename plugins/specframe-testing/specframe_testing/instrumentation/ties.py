"""Ties: two logits so close that rounding decides which token is the most likely.

A decoder layer rounds the residual stream twice, after attention and after its feed-forward block; with the embedding
and the head that is 2 L + 2 roundings for L layers. A rounding has a relative error of up to eps / 2, with a standard
deviation of eps / sqrt(12), where eps is the distance from 1 to the next number of the dtype, or of the steps that activations
are quantised to. The errors of different
roundings are nearly independent, so they add up like a random walk, and two logits may err in opposite directions:
the distance between two logits of size M has a standard deviation of sqrt(2) * sqrt(2 L + 2) * eps / sqrt(12) * M.
The bound is five standard deviations,

    bound = 2 * sqrt(2 L + 2) * eps * M, with M the largest logit's size.

The bound assumes that a model does not magnify errors. Sharp attention magnifies them, and so does a router of experts
that is itself near a tie. For such a model the bound may be wider, if a measurement without specframe shows it: twice the
largest error, over the vocabulary, of the model's own forward in its dtype against float64 for the same tokens. The error
is measured twice: with unchanged embeddings, and with random relative errors of sqrt(2 L + 2) * eps / sqrt(12) on them.

Two batch shapes add up the same numbers in different orders, so either shape may pick either of two tied tokens. A wrong
position, mask or cache moves logits by far more, a large part of M.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Iterator, Sequence

import attrs
import torch
from transformers import PreTrainedModel

from specframe.contracts.cache import Rounding
from specframe.models.own_cache import OwnCache
from specframe.models.precision import eps, rounds_activations

SHAPES = ((1, None), (1, 1), (8, None), (8, 1))
"""Shapes of the forwards whose errors are measured: rows, and tokens fed at once (None: all)."""

STEPPED = 16
"""Number of last tokens fed in steps. The tokens before them are fed at once, to save time."""


def roundings(model: PreTrainedModel) -> float:
    """Return the relative error that all roundings of one forward add up to."""
    layers = int(getattr(model.config.get_text_config(), "num_hidden_layers", 1))
    return math.sqrt(2 * layers + 2) * eps(model)


def tie_bound(model: PreTrainedModel, logits: torch.Tensor) -> torch.Tensor:
    """Return, for logits (..., V), the distance (...) below which two of them are a tie in the model's dtype."""
    return 2 * roundings(model) * logits.double().abs().amax(-1)


@attrs.frozen
class Weighed:
    """Comparison of some tokens with the best token, by the target's float64 logits."""

    gap: float
    """Distance between the two best logits."""
    short: float
    """Distance from the best logit to the lowest logit among the tokens."""
    bound: float
    """Largest distance that rounding can explain."""

    @property
    def tie(self) -> bool:
        """Whether every token is tied with the best."""
        return self.short <= self.bound


class Scales:
    """Comparison of tokens by a float64 copy of a model. The copy is made at first use.

    Args:
        model: the model.
        rounded: what its cache makes of keys and values, see :class:`specframe.models.own_cache.RoundedCache`.
    """

    def __init__(self, model: PreTrainedModel, rounded: Rounding | None = None) -> None:
        self._model, self._rounded = model, rounded
        self._copy: PreTrainedModel | None = None

    @torch.inference_mode()
    def weigh(
        self, ids: list[int], tokens: Sequence[int], noised: Callable[..., torch.Tensor] = torch.clone
    ) -> Weighed:
        """Compare the tokens as continuations of ``ids``; without tokens, ``short`` is infinite.

        ``noised`` turns logits (V,) into the scores whose best token is chosen, for example by adding Gumbel noise.
        """
        exact_V = self._logits(ids)
        score_V = noised(exact_V)
        best, second = score_V.topk(2).values.tolist()
        short = best - min((float(score_V[token]) for token in tokens), default=-math.inf)
        bound = float(tie_bound(self._model, exact_V))
        for rows, step in SHAPES:
            if bound < short < math.inf:
                bound = max(bound, 2 * self._error(ids, exact_V, rows, step))
        return Weighed(best - second, short, bound)

    def _logits(self, ids: list[int]) -> torch.Tensor:
        """Return the float64 logits after some tokens, (V,); a model that quantises its activations has none but its own."""
        if rounds_activations(self._model):  # its quantiser is part of what it computes
            return _forward(self._model, ids, 1, None, self._rounded)[0].double()
        if self._copy is None:
            with torch.inference_mode(False):
                self._copy = copy.deepcopy(self._model).double()
            if hasattr(self._copy.config, "_experts_implementation"):
                self._copy.config._experts_implementation = "eager"  # the other implementations do not support float64
        return _forward(self._copy, ids, 1, None, self._rounded)[0]

    def _error(self, ids: list[int], exact_V: torch.Tensor, rows: int, step: int | None) -> float:
        """Return the largest error of the model's own logits after some tokens."""
        with _erring(self._model):
            logits_BV = _forward(self._model, ids, rows, step, self._rounded)
            return float((logits_BV.double() - exact_V).abs().max())


@contextlib.contextmanager
def _erring(model: PreTrainedModel) -> Iterator[None]:
    """Add random rounding errors to the embeddings of all rows but the first. The errors are equal in every call."""
    size, place = roundings(model) / math.sqrt(12), 0

    def round_off(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        nonlocal place
        noise = torch.Generator(output.device).manual_seed(place)
        place += output.shape[1]
        errors = size * torch.randn(output.shape, generator=noise, device=output.device)
        errors[0] = 0
        return (output * (1 + errors)).to(output.dtype)

    try:
        hook = model.get_input_embeddings().register_forward_hook(round_off)
    except (AttributeError, NotImplementedError):  # a model of unusual structure, without input embeddings
        yield
        return
    try:
        yield
    finally:
        hook.remove()


def _forward(
    model: PreTrainedModel, ids: list[int], rows: int, step: int | None, rounded: Rounding | None = None
) -> torch.Tensor:
    """Return the logits after the tokens, (B, V), with the tokens fed to ``rows`` equal rows, ``step`` tokens at once."""
    tokens_BT = torch.tensor([ids] * rows, device=model.device)
    positions_BT = torch.arange(len(ids), device=model.device).expand(rows, -1)
    head = len(ids) if step is None else max(1, len(ids) - STEPPED)
    ends = [head, *range(head + (step or 1), len(ids), step or 1), len(ids)]
    options = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    alone, start = OwnCache(model, rounded=rounded), 0
    for end in dict.fromkeys(ends):
        fed, positions = tokens_BT[:, start:end], positions_BT[:, start:end]
        logits = alone.feed(fed, positions, **options)
        start = end
    return logits[:, -1]
