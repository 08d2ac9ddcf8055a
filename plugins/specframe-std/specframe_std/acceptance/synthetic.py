"""Forced acceptance, to measure a scheme's cost independently of the drafter's quality."""

from __future__ import annotations

import torch

from specframe.contracts.drafts import Acceptance, Draft, Scores
from specframe.contracts.round import Batch
from specframe.devices.kinds import constant
from specframe.errors import OptionError
from specframe.model.run import Run
from specframe.value_checks import number, read_number
from specframe_std.acceptance.greedy import Greedy
from specframe_std.acceptance.rejection import no_padding
from specframe_std.noise import Stream, uniform


class Synthetic(Greedy):
    """Accepts draft tokens at a given rate, right or wrong, to separate cost from drafter quality: NOT lossless.

    Acceptance depends only on the seed, the sequence and the position. The bonus token is the target's most likely token.

    Options (one of them; rate=0.7 without any):
        rate: probability that a draft token is accepted, given that all tokens before it are.
        profile: such a probability for each place of the draft, as in 0.9/0.7/0.5; the last holds for all further places.
        length: mean number of accepted tokens, at most the whole draft; 2.5: two or three with equal probability.
    """

    offers: frozenset[str] = frozenset({"deferred"})

    def __init__(
        self, rate: float | None = None, profile: str | float | None = None, length: float | None = None
    ) -> None:
        given = {"rate": rate, "profile": profile, "length": length}
        if len(named := [option for option, value in given.items() if value is not None]) > 1:
            raise OptionError(f"expected one of rate, profile and length, got {' and '.join(named)}")
        self._length = None if length is None else number("length", length, 0)
        self._rates = rates(profile) if profile is not None else [number("rate", 0.7 if rate is None else rate, 0, 1)]

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
