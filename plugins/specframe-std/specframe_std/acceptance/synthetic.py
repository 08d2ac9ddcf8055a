"""Forced acceptance, to measure a scheme's cost independently of the drafter's quality."""

from __future__ import annotations

import itertools
import json
from typing import Any

import torch

from specframe.contracts.drafts import Acceptance, Draft, Scores
from specframe.contracts.round import Batch
from specframe.devices.kinds import constant
from specframe.errors import OptionError
from specframe.files import contents, decode_text
from specframe.model.run import Run
from specframe.value_checks import number, read_number
from specframe_std.acceptance.greedy import Greedy
from specframe_std.acceptance.rejection import no_padding
from specframe_std.noise import Stream, uniform


class Synthetic(Greedy):
    """Accepts draft tokens at a given rate, right or wrong, to separate cost from drafter quality: NOT lossless.

    Acceptance depends only on the seed, the sequence and the position. The bonus token is the target's most likely token.

    It takes one of its options, or none.

    Options:
        rate: probability that a draft token is accepted, given that all tokens before it are; 0.7 without any option.
        profile: such a probability for each place of the draft, as in 0.9/0.7/0.5; the last holds for all further places.
        length: mean number of accepted tokens, at most the whole draft; 2.5: two or three with equal probability.
        from: a file that ``--report`` of a run wrote, whose acceptance by place is the profile.
    """

    offers: frozenset[str] = frozenset({"deferred"})

    def __init__(
        self, rate: float | None = None, profile: str | float | None = None, length: float | None = None, **more: Any
    ) -> None:
        report = more.pop("from", None)  # a word of the language, which no parameter can be named by
        given = {"rate": rate, "profile": profile, "length": length, "from": report}
        if more:
            raise OptionError(f"no option {', '.join(map(repr, more))}: its options are {', '.join(given)}")
        if len(named := [option for option, value in given.items() if value is not None]) > 1:
            raise OptionError(f"expected one of rate, profile, length and from, got {' and '.join(named)}")
        self._length = None if length is None else number("length", length, 0)
        if report is not None:
            self._rates = reported_rates(str(report))
        else:
            self._rates = (
                rates(profile) if profile is not None else [number("rate", 0.7 if rate is None else rate, 0, 1)]
            )

    def start(self, run: Run) -> None:
        """Take the seed."""
        self._seed = run.seed

    def accept(self, batch: Batch, draft: Draft, scores: Scores) -> Acceptance:
        """Return a prefix of random or given length, and the target's choice after it."""
        positions_BK = batch.positions(0, draft.nodes)
        drawn_BK = uniform(self._seed, batch.streams_B[:, None], positions_BK, Stream.ACCEPT)
        stands_BK = no_padding(draft, drawn_BK < self._chances(drawn_BK)).long().cumprod(1)
        choices_BT = scores.logits_BTV.argmax(-1)
        tokens_BK = draft.tokens_BN.where(stands_BK.bool(), choices_BT[:, :-1])
        return Acceptance(stands_BK.sum(1), torch.cat([tokens_BK, choices_BT[:, -1:]], dim=1))

    def _chances(self, drawn_BK: torch.Tensor) -> torch.Tensor:
        """Return the acceptance probability of each place of the draft, given all places before it, (K,)."""
        places_K = torch.arange(drawn_BK.shape[1], device=drawn_BK.device)
        if self._length is not None:
            return (self._length - places_K).clamp(0, 1)
        rates_P = constant(tuple(self._rates), drawn_BK.device, drawn_BK.dtype)
        return rates_P[places_K.clamp(max=len(self._rates) - 1)]


def rates(profile: str | float) -> list[float]:
    """Return the probabilities of a profile: a number, or several with / between them."""
    parts = profile.split("/") if isinstance(profile, str) else [profile]
    return [number("profile", as_number(part), 0, 1) for part in parts]


def as_number(text: str | float) -> str | float:
    """Return the number written in a text; return any other text unchanged."""
    try:
        return read_number(str(text), float)
    except ValueError:
        return text


def reported_rates(path: str) -> list[float]:
    """Return the acceptance probability of each place, given all places before it, in the run of a report's file.

    Raises:
        OptionError: the file cannot be read, or holds no report of a run that drafted.
    """
    try:
        counts, asked = drafted(json.loads(decode_text(contents(path))))
    except OSError as error:
        raise OptionError(f"from: {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        expected = "the report of a run that drafted, as specframe run --report writes it"
        raise OptionError(f"from: {path}: expected {expected}, got something else") from error
    deepest = max(*counts, asked)
    reached = [sum(rounds for accepted, rounds in counts.items() if accepted >= place) for place in range(deepest + 1)]
    return [after / before for before, after in itertools.pairwise(reached) if before]


def drafted(report: dict[str, Any]) -> tuple[dict[int, int], int]:
    """Return in how many rounds of a report each number of tokens was accepted, and the draft length where it was fixed."""
    counts = {int(accepted): rounds for accepted, rounds in report["figures"]["acceptance_histogram"].items()}
    length = str(report["combination"]["draft_length"])
    if not sum(counts.values()) or any(type(rounds) is not int or rounds < 0 for rounds in counts.values()):
        raise ValueError
    return counts, int(length) if length.isdecimal() else 1
