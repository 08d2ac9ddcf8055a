"""The drafts that give most tokens per second, by measured time and acceptance (goodput: SmartSpec, Liu et al. 2024).

Tensor names carry their shape: B rows, K places of a draft, C plans that are compared.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import attrs
import numpy as np

from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.round import Batch, Sequence
from specframe.devices import kinds
from specframe.errors import OptionError, literal
from specframe.model.padding_free import fullest
from specframe.model.run import Run
from specframe.value_checks import whole
from specframe_std.policies.acceptance_rates import LONGEST, AcceptanceRates
from specframe_std.policies.confidence import PRIOR_OF_BOTH, Calibration, ConfidenceStop, logit
from specframe_std.policies.levels import Levels
from specframe_std.policies.parting import passes_lost
from specframe_std.policies.round_seconds import RECENT, Curve, Prior, RoundSeconds
from specframe_std.policies.thread_clock import clock_of

PLAIN_FIRST = 3
"""Rounds of plain decoding at the start of a pipeline: drafts are compared with them. The first is not timed."""
FIRST, WORTH = 4, 0.8
"""The first draft length that is tried, at most: a longer draft says more about its cost and about acceptance than a short one.
Where tokens are dear, as in large batches, it is the longest from which the models' shapes let so large a share be expected of the
tokens per second of the best one."""
DOUBTED = 0.95
"""Share of plain decoding's tokens per second: where the shapes let even the best draft be expected to reach less, only that one is
tried. It is short in a large batch, whose many rows show acceptance soon. One token says little of what deeper drafts cost: where
plain decoding and drafts are expected to be alike, runs lose up to 4 percent by so short a test if drafts pay, and first runs win
one percent if they do not."""
UNREAD = 8
"""Rounds without a draft after which a draft model reads prompts no more, as at the start of a run
(:mod:`specframe_std.drafters.draft_model`)."""
READ = 0.6
"""Seconds of a token that a draft model reads with hundreds of others, as a share of the estimate by its shapes and the seconds of
a draft's token, which the target computes with few others. Two draft models on a CPU have 0.5 and 0.64."""
EVIDENCE = 4
"""Rows that the first draft length is tried on beyond :data:`TRIAL` rounds: the acceptance of two or three rows says little."""
NEW_SHAPES = 4
"""Rounds at most for which a choice is kept longer because their shapes were new to the device, and which are not timed: each
forward of a round is slow twice there, once as it is and once while it is captured."""
TRIAL = 2
"""Rounds for which drafts are kept after a plain round: the first is not timed, since the drafter has to catch up."""
DWELL = 8
"""Rounds for which a batch size keeps its depth, at most. Each row's part of it is chosen in every round."""
EAGER = 4
"""Rounds after which a depth is kept for one round more, up to :data:`DWELL`: early estimates change fast."""
QUIET, QUIETEST = 12, 64
"""Rounds for which a choice to draft nothing is kept: at most ``QUIET`` at first, later half as many as nothing was drafted, and at
most ``QUIETEST``. Nothing is learnt of drafts meanwhile, only the optimism of a choice grows, and a choice takes a sixth of a small
model's round. Three quarters in place of the half find a change of costs too late."""
TIMED = 4
"""Where nothing is drafted, rounds of a choice that are timed once :data:`RECENT` have been: the last ones for which it is kept.
Their median says as much, and reading the clock takes half of the policy's time there."""
MARGIN = 0.02
"""Share by which another depth's throughput estimate has to be higher: a change of shapes costs a little time."""
LOOK, LOOKS = 1e-4, 500
"""Seconds to look at the distribution of a place, and the looks that a step of the draft has to be worth for drafts to be ended by
them. Most looks end nothing, and a draft that ends early says nothing of its later places: on pairs whose steps take 2 and 20 ms
ending drafts costs 2 to 8 percent of the speed (benchmarks/README.md)."""
OPTIMISM, SETTLED = 0.15, 40
"""Standard deviations by which a depth is assumed to be faster than estimated, so that uncertain ones are tried. It grows
by :data:`OPTIMISM` after every :data:`SETTLED` rounds of one depth: one rejected by mistake is tried again."""


@attrs.define
class DepthChoice:
    """The depth in use for one batch size."""

    depth: int
    left: int = 1
    """Rounds for which it is kept at least."""
    settled: int = 0
    """Rounds for which it is in use."""
    longer: int = NEW_SHAPES
    """Rounds with new shapes for which it is still kept longer."""


class Goodput:
    """Drafts for each row as many tokens as give most tokens per second over the batch; none where plain decoding is faster.

    The tokens of all rows are ranked by their acceptance probability, by what was accepted of all rows and of each. For every depth
    those of them are taken that pay for the time that they cost, and the depth is chosen with the most expected tokens per second
    (:mod:`specframe_std.policies.acceptance_rates`, :mod:`specframe_std.policies.round_seconds`). A row none of whose tokens is
    taken drafts nothing. All of this is decided before any of these tokens is drawn, so that the output's distribution stays the
    target's. An uncertain depth is taken to be a little faster than estimated (the principle of upper confidence bounds: Lai and
    Robbins 1985). The estimates stay for the pipeline's next run.

    With ``confidence``, a row's draft ends before the plan says where the drafter is less sure than that pays for: the row's
    acceptance and the drafter's distribution are one estimate then (:mod:`specframe_std.policies.confidence`).

    Of trees the tokens are levels, with as many nodes each as the drafter's own tree has.

    Options:
        maximum: the longest draft, from 1 to 64; the deepest tree.
        confidence: "on" or "off": whether the drafter's distributions end drafts, where the drafter offers "stops" and looking at
            them takes no device synchronisation and a draft step takes at least 50 milliseconds.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"calibration", "trees", "deferred"})

    def __init__(self, maximum: int = 8, confidence: str = "on") -> None:
        if confidence not in ("on", "off"):
            raise OptionError(f"confidence: expected 'on' or 'off', got {literal(confidence)}")
        self._confident = confidence == "on"
        self.clock: Callable[[], float] | None = None
        """Returns the time, in seconds, or None for the one that :func:`clock_of` returns for the run's device."""
        self._clock: Callable[[], float] = time.perf_counter
        self._stop: ConfidenceStop | None = None
        self._started: float | None = None
        self._under_way: list[list[Sequence]] = []
        """The rows of rounds with a budget and no report yet: of two, where the next is begun before."""
        self._new_shapes: Callable[[], int] = lambda: 0
        self._known_shapes = 0
        self._leaves_out: Callable[[int, int], bool] = lambda places, tokens: False
        self._fits: dict[int, np.ndarray] = {}
        self.longest = whole("maximum", maximum, 1, LONGEST)
        self.draft_trees(Budget(self.longest))

    def draft_trees(self, budget: Budget) -> None:
        """Draft up to as many levels, and nodes, as the budget has; nothing is known of them yet."""
        self.maximum, self._levels = budget, Levels(budget)
        self.calibration = Calibration(budget.depth, PRIOR_OF_BOTH)
        self._seconds, self._acceptance = RoundSeconds(self._levels), AcceptanceRates(self._levels)
        self._choices: dict[int, DepthChoice] = {}
        self._plans: DepthPlans | None = None
        self._curves: dict[int, Curve] = {}
        """The seconds of rounds, by batch size, since a depth was last chosen for it."""
        self._round = self._drafted = self._undrafted = 0
        self._plain_first = PLAIN_FIRST
        self._models: tuple[object, object] | None = None
        self._prior = Prior()

    def calibrated(self) -> np.ndarray:
        """Return by bins what the calibration predicted, and what was accepted."""
        return self.calibration.bins

    def start(self, run: Run) -> None:
        """Take a round's cost by the models' shapes."""
        if (models := (run.runner.module, run.draft_model)) != self._models:  # their weights are counted once
            self._models, self._prior = models, Prior.of(run)
        self._seconds.prior = self._prior
        self._leaves_out, self._fits = run.runner.leaves_out_padding, {}
        self._clock = clock_of(run.runner.device)
        self._new_shapes = lambda: run.new_shapes
        self._drafted, self._undrafted = 0, UNREAD  # a draft model has read nothing of the run
        self._under_way = []

    def budget(self, batch: Batch) -> Budget:
        """Return each row's part of the plan with the most expected tokens per second."""
        self._stop = None  # that of a round that counted for nothing says nothing of this one
        rows, under_way = len(batch), [one for one in self._under_way if not all(row.finished for row in one)]
        self._under_way = [*under_way, batch.sequences]
        choice = self._choices.get(rows)
        if choice is None or choice.left < 1:
            self._curves[rows] = self._seconds.curve(rows)
            self._plan(batch)
            choice = self._choices[rows] = self._choose(batch, self._plans)
        elif choice.depth and not self._holds(choice.depth, rows):
            self._plan(batch)
        choice.left -= 1
        choice.settled += 1
        budget = self._parts(batch, choice.depth) if choice.depth else NOTHING
        if under_way:  # it begins when that round has ended
            return budget
        self._started = None
        if batch.mixed is None and (choice.depth or choice.settled <= RECENT or choice.left < TIMED):
            self._started, self._known_shapes = self._now(), self._new_shapes()
        return budget

    def observe(self, report: RoundReport) -> None:
        """Learn from a round. One that drafts after one that did not is not timed: the drafter had to catch up."""
        rows, depth = len(report.sequences), report.depth
        if self._stop is not None:
            self.calibration.add(self._stop.evidence(report))
            self._stop = None
        self._acceptance.add(report)
        asked, self._under_way = self._under_way[:1], self._under_way[1:]
        if self._started is None or [len(one) for one in asked] != [rows]:  # rows that had ended took part
            self._seconds.skip()
        else:
            seconds, typical = self._now() - self._started, bool(self._drafted or not depth)
            if self._new_shapes() > self._known_shapes:
                typical = False
                self._keep(rows)
            if typical and depth and self._seconds.surprises(rows, depth, seconds):
                self._choices[rows].left += 1
            self._seconds.add(rows, depth, self._paid(rows, depth, report.computed), seconds, typical)
        if self._under_way:
            self._started, self._known_shapes = self._now(), self._new_shapes()
        self._drafted = depth
        self._undrafted = 0 if depth else self._undrafted + 1
        self._round += 1

    def _keep(self, rows: int) -> None:
        """Keep a choice for a round more, since the last one was not timed."""
        choice = self._choices[rows]
        if choice.longer:
            choice.left, choice.longer = choice.left + 1, choice.longer - 1
        if self._round < self._plain_first < PLAIN_FIRST + NEW_SHAPES:
            self._plain_first += 1

    def _now(self) -> float:
        """Return the time, in seconds."""
        return (self.clock or self._clock)()

    def _parts(self, batch: Batch, depth: int) -> Budget:
        """Return each row's part of a plan, and the rule that ends drafts of which the drafter is not sure."""
        if self._plans is None:  # nothing was drafted yet
            return Budget(depth, int(self._levels.nodes_D[depth]))
        budget = self._plans.budget(depth)
        if not (self._confident and budget.depth and self._curves[len(batch)].step > LOOKS * LOOK):
            return budget
        if kinds.of(batch.lengths_B.device).queues or len(self._under_way) > 1:
            return budget
        rows = {sequence.request.key: row for row, sequence in enumerate(batch.sequences)}
        own_BK = logit(self._acceptance.rates_of(batch.sequences))
        row, together = self._plans.least(depth)
        self._stop = ConfidenceStop(self.calibration.weights_KF, row, rows, own_BK, together)
        return attrs.evolve(budget, stopping=self._stop)

    def _plan(self, batch: Batch) -> None:
        """Plan for a batch; before anything was drafted there is no plan."""
        if self._seconds.longest:
            stands_BK = self._acceptance.survival(batch)
            self._plans = DepthPlans.best(stands_BK, self._curves[len(batch)], self._fits_of(len(batch)), self._levels)

    def _holds(self, depth: int, rows: int) -> bool:
        """Return whether the plan of a depth still holds: rows have no parts of their own in it, and are as many."""
        return self._plans is None or (len(self._plans.stands_BK) == rows and not self._plans.uneven(depth))

    def _paid(self, rows: int, depth: int, computed: int) -> int:
        """Return the tokens whose time a round took: leaving out padding takes the time of the least padding that is left out."""
        if not depth:
            return computed
        places = rows * (int(self._levels.nodes_D[depth]) + 1)
        return computed if computed >= places else min(places, computed + places - int(self._fits_of(rows)[depth]))

    def _fits_of(self, rows: int) -> np.ndarray:
        """Return the most tokens of a block of drafts of which forwards leave out the padding, by depth."""
        if rows not in self._fits:
            places_C = (rows * (self._levels.nodes_D + 1)).tolist()
            self._fits[rows] = np.array([fullest(int(places), self._leaves_out) for places in places_C])
        return self._fits[rows]

    def _choose(self, batch: Batch, plans: DepthPlans | None) -> DepthChoice:
        """Return the best depth for a batch, or the one in use where another is not better by :data:`MARGIN`."""
        rows = len(batch)
        if self._round < self._plain_first:
            return DepthChoice(0)
        if plans is None:
            return DepthChoice(self._first(rows), TRIAL + min(3, EVIDENCE // rows))
        present = self._choices.get(rows)
        settled = present.settled if present else 0
        hope = OPTIMISM * (1 + settled / SETTLED)
        promise_C = self._promise(plans, hope, self._beside(batch))
        promise_C[max(3, 2 * self._seconds.longest) + 1 :] = 0
        best, usual = int(promise_C.argmax()), self._usual(rows)
        if promise_C[best] >= (1 + MARGIN) * promise_C[usual]:
            return DepthChoice(best, TRIAL)
        most = DWELL if usual else min(QUIETEST, max(QUIET, settled // 2))
        return DepthChoice(usual, min(most, 1 + self._round // EAGER), settled)

    def _first(self, rows: int) -> int:
        """Return the depth that is tried first."""
        depths_C = np.arange(1, min(FIRST, self.maximum.depth) + 1)
        gains_C = 1 + self._acceptance.rates().cumprod()[: len(depths_C)].cumsum()
        promise_C = gains_C / self._curves[rows].seconds(depths_C, self._levels.nodes_D[depths_C])
        worth = WORTH if promise_C.max() > DOUBTED / self._curves[rows].plain else 1.0
        return int(depths_C[promise_C >= worth * promise_C.max()][-1])

    def _beside(self, batch: Batch) -> float:
        """Return the seconds that drafts take outside of their own rounds, for each token to come."""
        prompts_B = np.array([len(sequence.request.prompt_ids) for sequence in batch.sequences])
        new = float((batch.limits - prompts_B).mean())
        left = (batch.limits - batch.lengths).tolist()
        parting = passes_lost(left, batch.waiting, new) * self._seconds.prior.weight_pass(len(batch))
        return self._reading(batch, prompts_B, new) + parting * self._curves[len(batch)].plain

    def _reading(self, batch: Batch, prompts_B: np.ndarray, new: float) -> float:
        """Return the seconds in which a draft model reads, for each token to come.

        To draft again it reads the tokens of the rounds since it drafted, and the prompts of rows that came :data:`UNREAD` rounds
        later. While it drafts it reads the prompts of sequences that wait. The shapes give the seconds of a token as a share of the
        target's, which are measured.

        Args:
            batch: the rows.
            prompts_B: tokens of their prompts.
            new: tokens that each sequence that waits is to have.
        """
        prior, room = self._seconds.prior, max(1, int((batch.limits - batch.lengths).sum()))
        if not (prior.read and prior.each):
            return 0.0
        own_B, waiting = batch.lengths - prompts_B, batch.waiting
        late_B = self._undrafted >= own_B - 1 + UNREAD  # reading a prompt gives its row a token
        missed_B = np.where(late_B, batch.lengths, np.minimum(self._undrafted, own_B))
        tokens = float(missed_B.sum()) / room + waiting * float(prompts_B.mean()) / (room + waiting * new)
        return tokens * READ * prior.read / prior.each * self._curves[len(batch)].token / len(batch)

    def _promise(self, plans: DepthPlans, hope: float, mixed: float = 0.0) -> np.ndarray:
        """Return the tokens per second of each plan, (C,), if it is faster than estimated by ``hope`` standard deviations.

        ``mixed`` is the seconds that drafts take outside of their rounds, for each token gained.
        """
        sure_K, hoped_K = self._acceptance.rates().cumprod(), self._acceptance.rates(hope).cumprod()
        more_C = np.concatenate([[1.0], (1 + hoped_K.cumsum()) / (1 + sure_K.cumsum())])
        seconds_C = np.maximum(plans.seconds_C - hope * plans.deviations_C, 0.3 * plans.seconds_C)
        return plans.gains_C * more_C / (seconds_C + mixed * plans.gains_C * (plans.depths_C > 0))

    def _usual(self, rows: int) -> int:
        """Return the depth in use for ``rows`` rows, or for the nearest number of rows."""
        return self._choices[min(self._choices, key=lambda size: abs(np.log(size / rows)))].depth


NOTHING = Budget(0)


@attrs.frozen(eq=False, slots=False)
class DepthPlans:
    """For every depth from 0 on, the tokens of the batch that are best drafted; of trees, the levels."""

    levels: Levels
    stands_BK: np.ndarray
    """The acceptance probability of each row's tokens."""
    least_C: np.ndarray
    """The least probability of a plan's tokens; it has all that are as likely and within its depth."""
    tokens_C: np.ndarray
    """Nodes of the drafts whose time the target takes, for each row; fewer than those of the depth where padding is left out."""
    gains_C: np.ndarray
    """Tokens that all rows gain, expected."""
    curve: Curve
    """Returns the seconds of rounds."""

    @classmethod
    def best(cls, stands_BK: np.ndarray, curve: Curve, fits_C: np.ndarray, levels: Levels) -> DepthPlans:
        """Return the plans with the most expected tokens per second.

        Args:
            stands_BK: the acceptance probability of each row's tokens.
            curve: returns the seconds of rounds.
            fits_C: the most tokens of rows that draft up to a depth with which padding is left out.
            levels: of the drafts.
        """
        rows, places = stands_BK.shape
        worth_KB = np.ascontiguousarray(stands_BK.T)
        # among equals the earlier place: parents are always in
        index_N = np.argsort(-worth_KB, axis=None, kind="stable")
        worth_N, depth_N = worth_KB.ravel()[index_N], index_N // rows + 1
        depths_C = np.arange(places + 1)
        depths_C1 = depths_C[:, None]
        within_CN = (depth_N <= depths_C1) & (worth_N > 0)
        gains_CN = rows + (within_CN * worth_N).cumsum(1)
        real_CN = rows + levels.width * within_CN.cumsum(1)
        fits_C1 = fits_C[:, None]
        places_C1 = rows * (levels.nodes_D[:, None] + 1)
        # leaving out padding takes as long as the least padding that is left out
        paid_CN = np.where(real_CN <= fits_C1, real_CN + places_C1 - fits_C1, places_C1)
        tokens_CN = paid_CN / rows - 1
        rates_CN = gains_CN / curve.seconds(depths_C1, tokens_CN) * within_CN
        at_C = depths_C, rates_CN.argmax(1)
        least_C, tokens_C, gains_C = worth_N[at_C[1]], tokens_CN[at_C], gains_CN[at_C]
        none_C = ~within_CN.any(1)
        least_C[none_C], tokens_C[none_C], gains_C[none_C] = np.inf, 0.0, rows
        return cls(levels, stands_BK, least_C, tokens_C, gains_C, curve)

    @functools.cached_property
    def depths_C(self) -> np.ndarray:
        """The depth of each plan."""
        return np.arange(len(self.gains_C))

    @functools.cached_property
    def seconds_C(self) -> np.ndarray:
        """The seconds of a round of each plan."""
        return self.curve.seconds(self.depths_C, self.tokens_C)

    @functools.cached_property
    def deviations_C(self) -> np.ndarray:
        """The standard deviations of these seconds."""
        return self.curve.deviations(self.depths_C, self.tokens_C)

    def least(self, depth: int) -> tuple[float, float]:
        """Return the probability from which on a token of a plan pays for its seconds, and the sum of those of a step that pays.

        Where padding is computed anyway a token costs nothing, and a step as much as one of all rows.
        """
        rate = float(self.gains_C[depth]) / float(self.seconds_C[depth])
        if self.uneven(depth):
            return min(rate * self.curve.token / len(self.stands_BK), 1.0), rate * self.curve.step
        return 0.0, rate * (self.curve.step + self.curve.token)

    def uneven(self, depth: int) -> bool:
        """Return whether rows have parts of their own in the plan of a depth."""
        return bool(self.tokens_C[depth] < self.levels.nodes_D[depth])

    def budget(self, depth: int) -> Budget:
        """Return the plan of a depth: where rows have no parts of their own in it, whichever rows there are."""
        if not self.uneven(depth):
            return Budget(depth, int(self.levels.nodes_D[depth])) if self.tokens_C[depth] else NOTHING
        depths_B = (self.stands_BK[:, :depth] >= self.least_C[depth]).sum(1)
        return self.levels.budget(depths_B) if depths_B.any() else NOTHING
