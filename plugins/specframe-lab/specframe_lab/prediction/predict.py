"""The speed of speculative decoding on a device, by the bytes and operations of its forwards."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from specframe.errors import OptionError, literal, sentence
from specframe.value_checks import number_within, parse_value
from specframe_lab.prediction.forward_times import Drafting, Drafts
from specframe_lab.prediction.model_costs import ModelCosts
from specframe_lab.prediction.pair import read_pair
from specframe_lab.prediction.profiles import DeviceProfile, read_profile

COUNTS = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
"""The figures of a run that say how many of its draft tokens were accepted."""


@attrs.frozen
class Prediction:
    """A round of one batch size and one draft length; draft length 0 is plain decoding."""

    batch_size: int
    draft_length: int
    round_seconds: float
    break_even_length: float
    """The acceptance length, the bonus token included, from which it is as fast as plain decoding."""
    acceptance_length: float
    """The tokens that a row is taken to gain in a round: all of them, where no acceptance was given."""
    tokens_per_second: float = attrs.field(init=False)
    """Of all rows."""
    speed: float
    """Its tokens per second, as many times those of plain decoding."""

    @tokens_per_second.default
    def _of_all_rows(self) -> float:
        return self.batch_size * self.acceptance_length / self.round_seconds


def predictions(
    target: ModelCosts,
    drafts: Drafts | None,
    profile: DeviceProfile,
    *,
    batch_sizes: Sequence[int],
    draft_lengths: Sequence[int],
    context: int,
    acceptance: float | None,
) -> Iterator[Prediction]:
    """Yield a prediction for plain decoding and each draft length, at each batch size.

    Args:
        target: the target's costs.
        drafts: those of what drafts, or None if nothing does.
        profile: the device.
        batch_sizes: rows decoded together.
        draft_lengths: tokens drafted in a round.
        context: tokens of a row in the cache.
        acceptance: chance that a draft token is accepted, if those before it are, or None if all are.
    """
    for rows in batch_sizes:
        plain = profile.seconds(target.forward(rows, 1, context))
        yield Prediction(rows, 0, plain, 1.0, 1.0, 1.0)
        for length in draft_lengths if drafts is not None else ():
            assert drafts is not None
            drafting = drafts.drafting(rows, length, context)
            seconds = round_seconds(target, drafting, profile, rows, context)
            gained = expected_length(1 if acceptance is None else acceptance, drafting.depth)
            yield Prediction(rows, length, seconds, seconds / plain, gained, gained * plain / seconds)


def predictor(
    target: str | None, drafter: str, dtype: str, device_profile: str, acceptance: float | None, context: int
) -> Callable[..., Iterator[Prediction]]:
    """Return :func:`predictions` of a pair by its names, on a device by its profile's, which takes batch sizes and draft lengths.

    Raises:
        SpecframeError: the profile or the pair cannot be found, or one of them cannot be used.
    """
    profile = read_profile(device_profile)
    pair = read_pair(target, drafter, dtype)
    return functools.partial(predictions, pair.target, pair.drafts, profile, context=context, acceptance=acceptance)


def round_seconds(target: ModelCosts, drafting: Drafting, profile: DeviceProfile, rows: int, context: int) -> float:
    """Return the time of a round: the target's forward over the draft and the token before it, and the forwards of the draft."""
    seconds = profile.seconds(target.forward(rows, drafting.nodes + 1, context))
    return seconds + sum(profile.seconds(load) for load in drafting.loads)


def expected_length(acceptance: float, length: float) -> float:
    """Return the tokens that a row gains in a round, the bonus token included."""
    if acceptance == 1:
        return length + 1
    return (1 - acceptance ** (length + 1)) / (1 - acceptance)


def read_acceptance(given: str) -> float:
    """Return the chance that a draft token is accepted if those before it are: a number, or what runs in a file have shown.

    The file is a report of ``specframe run --report`` or a ``results.jsonl`` of ``specframe compare``.

    Raises:
        OptionError: it is neither, or no run of the file has drafted.
    """
    value = parse_value(given)
    if number_within(value, 0, 1):
        return float(value)
    try:
        text = Path(given).read_text(encoding="utf-8")
        found = [json.loads(text)] if given.endswith(".json") else [json.loads(line) for line in text.splitlines()]
    except FileNotFoundError:
        raise OptionError(
            f"--acceptance: expected a number from 0 to 1 or a file of figures, got {literal(given)}"
        ) from None
    except (OSError, ValueError) as error:
        raise OptionError(f"--acceptance: {given} cannot be read: {sentence(error)}") from error
    steps, drafted, accepted = (sum(count(one, name) for one in found) for name in COUNTS)
    if not steps or not drafted:
        raise OptionError(
            f"--acceptance: {given} has no run that drafted: expected figures of one, with {', '.join(COUNTS)}"
        )
    return acceptance_rate(drafted / steps, 1 + accepted / steps)


def count(run: Any, name: str) -> int:
    """Return a figure of a run, or 0 if it has none."""
    figures = run.get("figures") if isinstance(run, Mapping) else None
    value = figures.get(name) if isinstance(figures, Mapping) else None
    return value if isinstance(value, int) else 0


def acceptance_rate(length: float, gained: float) -> float:
    """Return the chance of acceptance by which rounds of a draft length gain ``gained`` tokens, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_length(middle, length) < gained else (low, middle)
    return (low + high) / 2
