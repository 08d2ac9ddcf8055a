"""Acceptance length by the tokens that a draft was trained on, and by its layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from specframe.errors import OptionError
from specframe_lab.laws.draft_table import TableDraft
from specframe_lab.laws.least_squares import Interval, Law, fit, interval, resample
from specframe_lab.laws.measured_runs import MeasuredRun, by_prompt

TOKENS, LAYERS = "tokens", "layers"


@attrs.frozen(eq=False)
class HeldOut:
    """A draft that a law was not fitted to."""

    draft: TableDraft
    predicted: float
    measured: float
    error: Interval
    """Of predicted less measured, by the prompts."""


@attrs.frozen(eq=False)
class AcceptanceLaw:
    """Mean acceptance lengths of the drafts of a family, the bonus token included, at one draft length."""

    draft_length: int
    drafts: list[TableDraft]
    y_N: np.ndarray
    """Measured, by draft."""
    y_RN: np.ndarray
    """The same in every resample of the prompts."""
    prompts: int

    def law(self, names: Sequence[str], use: Callable[[TableDraft], bool] = lambda draft: True) -> Law | None:
        """Return the law by some quantities of those drafts that are used, or None if these drafts do not determine it."""
        chosen = [place for place, draft in enumerate(self.drafts) if use(draft)]
        if not chosen:
            return None
        x_NM = np.array([[getattr(self.drafts[place], name) for name in names] for place in chosen], dtype=float)
        return fit(names, x_NM, self.y_N[chosen], self.y_RN[:, chosen])

    def laws(self, name: str) -> dict[int, Law]:
        """Return a law by tokens for each depth, or by layers for each volume, by that depth or volume."""
        other = LAYERS if name == TOKENS else TOKENS
        fixed = sorted({getattr(draft, other) for draft in self.drafts})
        found = {value: self.law([name], lambda draft, value=value: getattr(draft, other) == value) for value in fixed}  # type: ignore[misc]
        return {value: law for value, law in found.items() if law}

    @property
    def barrier(self) -> Law | None:
        """The law by both."""
        return self.law([TOKENS, LAYERS])

    def held_out(self, name: str, alone: bool = False) -> list[HeldOut]:
        """Return what laws that have not seen the largest volume, or depth, predict of its drafts.

        They are by both quantities or, ``alone``, by that one: a law for each depth, or volume. Without enough other drafts nothing
        is predicted.
        """
        names, other = [name] if alone else [TOKENS, LAYERS], LAYERS if name == TOKENS else TOKENS
        largest, found = max(getattr(draft, name) for draft in self.drafts), []

        def law_without(left: TableDraft) -> Law | None:
            fixed = {getattr(draft, other) for draft in ([left] if alone else self.drafts)}
            return self.law(names, lambda draft: getattr(draft, name) < largest and getattr(draft, other) in fixed)

        for place, draft in enumerate(self.drafts):
            if getattr(draft, name) == largest and (law := law_without(draft)):
                x = [getattr(draft, one) for one in names]
                errors_R = law.draws_at(*x) - self.y_RN[:, place]
                found.append(HeldOut(draft, law.at(*x), float(self.y_N[place]), interval(errors_R)))
        return found


def acceptance_of(
    runs: Sequence[MeasuredRun], drafts: Sequence[TableDraft], draft_length: int | None, resamples: int, seed: int
) -> AcceptanceLaw:
    """Return the acceptance of a family's drafts; those without runs are left out.

    Of a draft those runs count that have the most prompts and this draft length, or for None the one that most drafts have, the
    longest of several. Prompts are resampled.

    Raises:
        OptionError: fewer than two drafts of the family have runs at the draft length, or their prompts or targets differ.
    """
    known = {draft.name for draft in drafts}
    lengths = Counter(length for _, length in {(run.drafter, run.draft_length) for run in runs if run.drafter in known})
    if not lengths:
        raise OptionError(
            f"--drafts: expected drafters that the results have ({names({run.drafter for run in runs})}), got {names(known)}"
        )
    length = draft_length or max(lengths, key=lambda one: (lengths[one], one))
    chosen = {
        name: longest([run for run in runs if (run.drafter, run.draft_length) == (name, length)]) for name in known
    }
    used = [draft for draft in drafts if chosen[draft.name]]
    if len(used) < 2:
        raise OptionError(
            f"--drafts: expected at least two drafts with runs at draft length {length}, since a law has two coefficients, "
            f"got {names({draft.name for draft in used})}"
        )
    targets = sorted({run.setting[1] for draft in used for run in chosen[draft.name]})
    if len(targets) > 1:
        raise OptionError(f"--drafts: expected runs with one target, got some with {' and some with '.join(targets)}")
    steps_NP, accepted_NP = by_prompt([summed(chosen[draft.name]) for draft in used], "--drafts")
    if not steps_NP.sum(1).all():
        raise OptionError(f"--drafts: {names({used[int(steps_NP.sum(1).argmin())].name})} has not drafted in any round")
    counts_RP = resample(steps_NP.shape[1], resamples, seed)
    return AcceptanceLaw(
        length,
        used,
        1 + accepted_NP.sum(1) / steps_NP.sum(1),
        1 + (counts_RP @ accepted_NP.T) / np.maximum(counts_RP @ steps_NP.T, 1),
        steps_NP.shape[1],
    )


def longest(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return those runs that have the most prompts."""
    most = max((len(run.steps_P) for run in runs), default=0)
    return [run for run in runs if len(run.steps_P) == most]


def summed(runs: Sequence[MeasuredRun]) -> MeasuredRun:
    """Return runs of one drafter as one, whose counts are theirs together."""
    steps_NP, accepted_NP = by_prompt(runs, f"drafter {runs[0].drafter}")
    return attrs.evolve(runs[0], steps_P=steps_NP.sum(0), accepted_P=accepted_NP.sum(0))


def names(found: set[str]) -> str:
    """Return names in a sentence, the first few of many."""
    first = sorted(found)[:3]
    return ", ".join(first) + (f" and {len(found) - 3} more" if len(found) > 3 else "") if first else "none"
