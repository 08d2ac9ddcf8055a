"""The draft, and the draft length, that laws and a device profile make the fastest at a batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from specframe.errors import OptionError, literal
from specframe_lab.laws.acceptance_laws import AcceptanceLaw
from specframe_lab.laws.least_squares import Interval, Law, interval
from specframe_lab.prediction.model_costs import ModelCosts
from specframe_lab.prediction.predict import Prediction, acceptance_rate, predictions
from specframe_lab.prediction.profiles import DeviceProfile

LONGEST = 32
"""The most draft lengths that are looked at. Where drafting pays at all, the best is far below it unless nearly all is accepted."""


@attrs.frozen
class DraftChoice:
    """The fastest draft of a batch size, or plain decoding where none is faster."""

    batch_size: int
    tokens: int
    layers: int
    acceptance: float
    """Acceptance length at the draft length of the fit, by the law."""
    draft_length: int
    """The best, or 0 if plain decoding is faster than every draft."""
    tokens_per_second: float
    speed: float
    """As many times the speed of plain decoding."""
    speed_interval: Interval
    """By the prompts that the law was fitted to, with the same draft and draft length."""


def choose_drafts(
    acceptance: AcceptanceLaw,
    target: ModelCosts,
    costs: Callable[[int], ModelCosts],
    profile: DeviceProfile,
    *,
    tokens: Sequence[int],
    layers: Sequence[int],
    batch_sizes: Sequence[int],
    context: int,
) -> list[DraftChoice]:
    """Return the fastest draft for each number of training tokens and batch size; ``costs`` are those of a draft by its layers.

    Tokens cost a draft nothing at run time, so that the most would always be chosen: only layers are.

    Raises:
        OptionError: the drafts do not determine the law by tokens and layers.
    """
    law = acceptance.barrier
    if law is None:
        raise OptionError(
            "--device-profile: expected at least three drafts, of two numbers of tokens and of two depths, for a law by both"
        )
    shapes = {depth: costs(depth) for depth in layers}
    return [
        max(
            (best(acceptance, law, target, shapes[depth], profile, volume, depth, rows, context) for depth in layers),
            key=lambda choice: choice.tokens_per_second,
        )
        for rows in batch_sizes
        for volume in tokens
    ]


def best(
    acceptance: AcceptanceLaw,
    law: Law,
    target: ModelCosts,
    draft: ModelCosts,
    profile: DeviceProfile,
    tokens: int,
    layers: int,
    rows: int,
    context: int,
) -> DraftChoice:
    """Return the best draft length of one draft."""
    length = acceptance.draft_length
    expected = law.at(tokens, layers)

    def found(gained: float, lengths: Sequence[int]) -> list[Prediction]:
        rate = acceptance_rate(length, min(max(gained, 1.0), length + 1.0))
        asked: Any = {"batch_sizes": [rows], "draft_lengths": lengths, "context": context, "acceptance": rate}
        return [*predictions(target, draft, profile, **asked)]

    chosen = max(found(expected, range(1, LONGEST + 1)), key=lambda one: one.tokens_per_second)
    low, high = (
        found(bound, [chosen.draft_length] if chosen.draft_length else [])[-1].speed
        for bound in interval(law.draws_at(tokens, layers))
    )
    return DraftChoice(
        rows, tokens, layers, expected, chosen.draft_length, chosen.tokens_per_second, chosen.speed, (low, high)
    )


def with_layers(config: Any, layers: int) -> Any:
    """Return a model's configuration with another number of layers; what lists a kind for each layer is made anew.

    Raises:
        OptionError: transformers cannot make it.
    """
    values = config.to_dict()
    values.pop("layer_types", None)
    try:
        return type(config)(**(values | {"num_hidden_layers": layers}))
    except Exception as error:  # whatever transformers raises on values that do not fit
        raise OptionError(
            f"--drafter: a {literal(config.model_type)} cannot be made with {layers} layers: {error}"
        ) from error
