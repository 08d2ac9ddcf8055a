"""The draft length that gives the most tokens per second, by batch size."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from specframe_lab.laws.least_squares import Interval, Law, design, fit, interval, resample
from specframe_lab.laws.measured_runs import MeasuredRun, by_prompt

BATCH_SIZE = "batch size"


@attrs.frozen(eq=False)
class BestBudget:
    """The fastest draft length of those measured at one batch size; 0 is plain decoding."""

    batch_size: int
    draft_length: int
    interval: Interval
    speeds: dict[int, float]
    """Tokens per second of each draft length, the median of the repeats."""
    draft_lengths_R: np.ndarray
    """The fastest in every resample."""

    @property
    def at_edge(self) -> bool:
        """Whether it is the longest that was measured: a longer one may be faster."""
        return self.draft_length == max(self.speeds)

    def kept(self, predicted: float) -> float:
        """Return the speed of the measured draft length that is nearest to a predicted one, as a share of the fastest one's."""
        nearest = min(self.speeds, key=lambda length: (abs(length - predicted), length))
        return self.speeds[nearest] / self.speeds[self.draft_length]


@attrs.frozen(eq=False)
class BatchHeldOut:
    """A batch size that a law was not fitted to."""

    best: BestBudget
    predicted: float

    @property
    def kept(self) -> float:
        """The share of the fastest speed that the predicted draft length gives."""
        return self.best.kept(self.predicted)


@attrs.frozen(eq=False)
class Budgets:
    """The best draft lengths of one scheme."""

    drafter: str
    """The drafter, and the alignment."""
    best: list[BestBudget]
    """By batch size."""

    @property
    def law(self) -> Law | None:
        """log K = a log(batch size) + b, over the batch sizes at which drafting pays."""
        return budget_law(self.best)

    @property
    def held_out(self) -> list[BatchHeldOut]:
        """Each batch size in turn, by the law of the others; those without one are left out."""
        rest = [(best, budget_law([one for one in self.best if one is not best])) for best in self.best]
        return [BatchHeldOut(best, predicted(law, best.batch_size)) for best, law in rest if law]

    @property
    def schedule(self) -> list[list[int]]:
        """The best draft lengths as vLLM's ``num_speculative_tokens_per_batch_size``: first and last batch size, and K.

        A batch size between two that were measured has the draft length of the smaller one; those below the first have its.
        """
        ranges: list[list[int]] = []
        firsts = [1, *(best.batch_size for best in self.best[1:])]
        lasts = [*(best.batch_size - 1 for best in self.best[1:]), self.best[-1].batch_size]
        for first, last, best in zip(firsts, lasts, self.best, strict=True):
            if ranges and ranges[-1][2] == best.draft_length:
                ranges[-1][1] = last
            else:
                ranges.append([first, last, best.draft_length])
        return ranges


def budget_law(best: Sequence[BestBudget]) -> Law | None:
    """Return the law of the best draft lengths, or None for drafting pays at fewer than two of the batch sizes."""
    paying = [one for one in best if one.draft_length]
    if not paying:
        return None
    x_NM = np.array([[one.batch_size] for one in paying], dtype=float)
    lengths_RN = np.stack([one.draft_lengths_R for one in paying], axis=1)
    logs_RN = np.log(np.where(lengths_RN > 0, lengths_RN, np.nan))
    law = fit([BATCH_SIZE], x_NM, np.log([one.draft_length for one in paying]), logs_RN)
    return law and refitted(law, logs_RN)


def refitted(law: Law, logs_RN: np.ndarray) -> Law:
    """Return a law with its resamples fitted anew, each to the batch sizes at which drafting pays in it.

    A resample in which it pays at fewer than two has none.
    """
    terms_NC = design(law.x_NM)
    draws_RC = np.full((len(logs_RN), terms_NC.shape[1]), np.nan)
    for draw_C, logs_N in zip(draws_RC, logs_RN, strict=True):
        there = ~np.isnan(logs_N)
        if there.sum() >= terms_NC.shape[1]:
            draw_C[:] = np.linalg.lstsq(terms_NC[there], logs_N[there], rcond=None)[0]
    return attrs.evolve(law, coefficients_RC=draws_RC, residuals_RN=logs_RN - draws_RC @ terms_NC.T)


def predicted(law: Law, batch_size: int) -> float:
    """Return the draft length that a law gives for a batch size, or 0 if it is below a half, which is nearer to no draft."""
    length = float(np.exp(law.at(batch_size)))
    return length if length >= 0.5 else 0.0


def budgets_of(runs: Sequence[MeasuredRun], resamples: int, seed: int) -> list[Budgets]:
    """Return the best draft lengths of every scheme that a file has at two batch sizes, and there at two draft lengths.

    Plain decoding is a draft length, too. Speeds of two files are not compared: their prompts may be others, and the machine.

    In a resample the repeats of a cell are drawn anew, the same ones in all cells, since these take turns. So are the prompts: a
    cell's speed goes with the acceptance length of the prompts drawn, while its rounds take as long as they took.
    """
    timed = [run for run in runs if run.speed]
    found = []
    schemes = {(run.setting, run.scheme): run for run in timed if run.draft_length}
    for (setting, scheme), one in schemes.items():
        cells: dict[int, dict[int, list[MeasuredRun]]] = defaultdict(lambda: defaultdict(list))
        for run in timed:
            if run.setting == setting and (run.scheme == scheme or not run.draft_length):
                cells[run.batch_size][run.draft_length].append(run)
        several = {size: of for size, of in sorted(cells.items()) if len(of) > 1}
        if len(several) > 1:
            name = f"{one.drafter}{alignment(scheme)}"
            found.append(Budgets(name, best_of(several, name, resamples, seed)))
    return found


def alignment(scheme: str) -> str:
    """Return the alignment of a scheme, to follow its drafter."""
    found = json.loads(scheme).get("align")
    return f" under {found}" if found else ""


def best_of(
    cells: Mapping[int, Mapping[int, list[MeasuredRun]]], name: str, resamples: int, seed: int
) -> list[BestBudget]:
    """Return the fastest draft length at each batch size."""
    drafted = [run for of in cells.values() for runs in of.values() for run in runs if run.draft_length]
    prompts = by_prompt(drafted, name)[0].shape[1]
    counts_RP = resample(prompts, resamples, seed)
    found = []
    for size, of in cells.items():
        repeats = min(len({run.repeat for run in runs}) for runs in of.values())
        picks_RT = np.random.default_rng(seed).integers(repeats, size=(resamples, repeats))
        lengths = np.array(sorted(of))
        draws_RK = np.stack([speeds_of(of[length], counts_RP, picks_RT) for length in lengths], axis=1)
        speeds = {int(length): float(np.median([run.speed for run in of[length]])) for length in lengths}
        best_R = lengths[draws_RK.argmax(1)]
        found.append(BestBudget(size, max(speeds, key=speeds.__getitem__), interval(best_R), speeds, best_R))
    return found


def speeds_of(runs: Sequence[MeasuredRun], counts_RP: np.ndarray, picks_RT: np.ndarray) -> np.ndarray:
    """Return the speed of a cell in every resample, (R,)."""
    ordered = sorted(runs, key=lambda run: run.repeat)
    medians_R = np.median(np.array([run.speed for run in ordered])[picks_RT], axis=1)
    first = ordered[0]
    if not first.draft_length or not first.steps_P.sum():
        return medians_R
    drawn_R = (counts_RP @ first.accepted_P) / np.maximum(counts_RP @ first.steps_P, 1)
    return medians_R * (1 + drawn_R) / (1 + first.accepted_P.sum() / first.steps_P.sum())
