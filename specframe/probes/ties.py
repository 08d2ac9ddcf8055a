"""When two logits are as good as equal: rounding decides then which token is the most likely one.

A decoder layer rounds the residual stream twice, after attention and after its feed-forward block; with the embedding
and the head that is 2 L + 2 roundings for L layers. Each errs by up to eps / 2 of what it rounds, with a standard
deviation of eps / sqrt(12), where eps is the distance from 1 to the next number of the dtype. The errors of different
roundings are as good as independent, so they add up like a random walk, and what one logit loses another may gain:
the distance between two logits of size M has a standard deviation of sqrt(2) * sqrt(2 L + 2) * eps / sqrt(12) * M.
Five of those make the bound,

    bound = 2 * sqrt(2 L + 2) * eps * M, with M the largest logit's size.

It supposes that a model passes errors on as they are. One that magnifies them (sharp attention, or a router of experts
that is itself near a tie) has a wider bound where that can be shown without any of specframe: twice the largest error,
over the vocabulary, of the model's own forward in its dtype against float64 at that very place, as it is and with
roundings like those of all layers, sqrt(2 L + 2) * eps / sqrt(12), put on the embeddings at random.

Two batch shapes add up the same numbers in different orders, so either may pick either of two tokens whose logits are
that close. A wrong position, mask or cache moves logits by a good part of M itself.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Iterator, Sequence

import attrs
import torch
from transformers import DynamicCache, PreTrainedModel

SHAPES = ((1, None), (1, 1), (8, None), (8, 1))
"""Rows, and tokens fed at once (None: all), of the forwards whose errors are measured."""

STEPPED = 16
"""How many tokens at the end are fed in steps; what comes before them is fed at once."""


def roundings(model: PreTrainedModel) -> float:
    """Return the relative size that all roundings of one forward add up to."""
    layers = int(getattr(model.config.get_text_config(), "num_hidden_layers", 1))
    return math.sqrt(2 * layers + 2) * torch.finfo(model.dtype).eps


def tie_bound(model: PreTrainedModel, logits: torch.Tensor) -> torch.Tensor:
    """Return, for logits (..., V), the distance (...) below which two of them are a tie in the model's dtype."""
    return 2 * roundings(model) * logits.double().abs().amax(-1)


@attrs.frozen
class Weighed:
    """How good some tokens are, by the target's logits in float64."""

    gap: float
    """Distance of the two best logits."""
    short: float
    """How far the least of the tokens is from the best."""
    bound: float
    """Largest distance that rounding explains."""

    @property
    def tie(self) -> bool:
        """Whether each of the tokens is as good as the best."""
        return self.short <= self.bound


class Scales:
    """Weighs tokens with a float64 copy of a model, made when it is first needed."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._copy: PreTrainedModel | None = None

    @torch.inference_mode()
    def weigh(
        self, ids: list[int], tokens: Sequence[int], noised: Callable[..., torch.Tensor] = torch.clone
    ) -> Weighed:
        """Weigh the tokens as continuations of ``ids``; with no token the shortfall is infinite.

        ``noised`` makes of the logits (V,) those whose best is chosen.
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
        """Return the float64 logits after some tokens, (V,)."""
        if self._copy is None:
            with torch.inference_mode(False):
                self._copy = copy.deepcopy(self._model).double()
            if hasattr(self._copy.config, "_experts_implementation"):
                self._copy.config._experts_implementation = "eager"  # the others have no float64
        return _forward(self._copy, ids, 1, None)[0]

    def _error(self, ids: list[int], exact_V: torch.Tensor, rows: int, step: int | None) -> float:
        """Return the largest error of the model's own logits after some tokens."""
        with _erring(self._model):
            return float((_forward(self._model, ids, rows, step).double() - exact_V).abs().max())


@contextlib.contextmanager
def _erring(model: PreTrainedModel) -> Iterator[None]:
    """Put random roundings on the embeddings of all rows but the first, the same ones every time."""
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
    except (AttributeError, NotImplementedError):  # a model of another making, without embeddings
        yield
        return
    try:
        yield
    finally:
        hook.remove()


def _forward(model: PreTrainedModel, ids: list[int], rows: int, step: int | None) -> torch.Tensor:
    """Return the logits after some tokens, (B, V), when they are fed to ``rows`` rows, ``step`` of them at once."""
    tokens_BT = torch.tensor([ids] * rows, device=model.device)
    positions_BT = torch.arange(len(ids), device=model.device).expand(rows, -1)
    head = len(ids) if step is None else max(1, len(ids) - STEPPED)
    ends = [head, *range(head + (step or 1), len(ids), step or 1), len(ids)]
    options = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    cache, start = DynamicCache(config=model.config), 0
    for end in dict.fromkeys(ends):
        fed, positions = tokens_BT[:, start:end], positions_BT[:, start:end]
        logits = model(input_ids=fed, position_ids=positions, past_key_values=cache, use_cache=True, **options).logits
        start = end
    return logits[:, -1]
