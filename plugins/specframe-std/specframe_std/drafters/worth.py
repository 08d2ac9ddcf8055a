"""Whether a drafter's steps are worth their time in addition to the tokens that others have found.

A round in which rows gain *G* tokens takes *C* plain rounds. A drafter that adds *g* tokens and *c* plain rounds is worth it where
(*G* + *g*) / (*C* + *c*) is more than *G* / *C*. What a step and a token cost follows from the models' shapes, and what tokens gain
from those accepted in rounds before. So the choice is made before any token of the draft is drawn, and the output stays the
target's (docs/budgets.md).

Arrays end with their shape: B rows.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from specframe.model.run import Run
from specframe_std.policies.acceptance_rates import BELIEF, RATE, WINDOW
from specframe_std.policies.round_seconds import Prior


class Worth:
    """What drafts of several sources gain and cost in a round.

    A source is whatever its drafts are known by: each has an acceptance probability of its own.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[float, float]] = {}
        """Tested and accepted tokens of each source."""
        self._prior = Prior()
        self.begin(1)

    def start(self, run: Run) -> None:
        """Take the costs that follow from the models' shapes."""
        self._prior = Prior.of(run)

    def begin(self, rows: int) -> None:
        """Begin a round of ``rows`` rows, without drafts."""
        self._drafted: list[tuple[Hashable, np.ndarray]] = []
        self._gained, self._cost = float(rows), 1.0
        self._token = self._prior.token(rows) / rows

    def add(self, source: Hashable, counts_B: np.ndarray) -> None:
        """Take in drafts of ``counts_B`` tokens."""
        self._drafted.append((source, counts_B))
        self._gained += self._gain(source, counts_B)
        self._cost += self._token * float(counts_B.sum())

    def found(self, source: Hashable, counts_B: np.ndarray) -> float:
        """Return the tokens gained for each plain round's time if drafts that are there already are verified, too."""
        return self._with_steps(source, counts_B, 0)

    def stepped(self, source: Hashable, most_B: np.ndarray, stepwise: bool) -> tuple[float, int]:
        """Return the most tokens gained for each plain round's time if a drafter takes steps, and the depth that gains them.

        Args:
            source: the drafter's drafts.
            most_B: the most tokens of each row; one has some.
            stepwise: whether each token takes a step; otherwise one step drafts all.
        """
        depths = range(1, int(most_B.max()) + 1)
        return max(
            (self._with_steps(source, np.minimum(most_B, depth), depth if stepwise else 1), depth) for depth in depths
        )

    def _with_steps(self, source: Hashable, counts_B: np.ndarray, steps: int) -> float:
        """Return the tokens gained for each plain round's time with drafts of ``counts_B`` tokens."""
        cost = self._prior.step * steps + self._token * float(counts_B.sum())
        return (self._gained + self._gain(source, counts_B)) / (self._cost + cost)

    def stood(self, accepted_B: np.ndarray, goes_on_B: np.ndarray) -> None:
        """Learn how many tokens of the round's drafts were accepted; of rows that have ended nothing is learnt."""
        for source, counts_B in self._drafted:
            stood_B = np.minimum(accepted_B, counts_B)[goes_on_B]
            tested = float((stood_B + (stood_B < counts_B[goes_on_B])).sum())
            before, half = self._seen.get(source, (0.0, 0.0)), 0.5 ** (len(counts_B) / WINDOW)
            self._seen[source] = before[0] * half + tested, before[1] * half + float(stood_B.sum())
        self._drafted = []

    def _gain(self, source: Hashable, counts_B: np.ndarray) -> float:
        """Return the expected gain of drafts: the sum over places of the probability that all up to there are accepted."""
        tested, stood = self._seen.get(source, (0.0, 0.0))
        rate = (stood + BELIEF * RATE) / (tested + BELIEF)
        places = np.arange(1, int(counts_B.max(initial=0)) + 1)
        return float((rate**places * (places <= counts_B[:, None])).sum())
