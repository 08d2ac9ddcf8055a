"""Which runs a command would make, how many of them are there already, and how long the others would take."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import attrs

from specframe_lab.comparison.compare import ComparisonStep
from specframe_lab.comparison.comparison_results import ABOUT, RESULTS, Line, difference, failure
from specframe_lab.comparison.schemes import Case


@attrs.frozen
class Forecast:
    """Forecast of a comparison: its runs, and the results that its folder already has."""

    steps: Sequence[ComparisonStep]
    lines: dict[tuple[str, int], Line]
    """The lines that are there, by case and repeat."""
    refusal: str = ""
    """Reason why the folder would be refused; "" if it would be accepted."""

    @property
    def cases(self) -> dict[str, Case]:
        """The cases that are run, in the order of their first run."""
        return {step.case.key: step.case for step in self.steps}

    def runs(self, case: Case) -> tuple[int, int]:
        """Return how many runs a case has, and how many of them are there."""
        repeats = [step.repeat for step in self.steps if step.case.key == case.key]
        return len(repeats), sum((case.key, repeat) in self.lines for repeat in repeats)

    @property
    def missing(self) -> list[ComparisonStep]:
        """The runs that would be made."""
        return [step for step in self.steps if (step.case.key, step.repeat) not in self.lines]

    @property
    def seconds(self) -> float | None:
        """Seconds of decoding that the missing runs would take, each as long as its case or else the mean case took.

        None: there is no run to use.
        """
        took: dict[str, list[float]] = {}
        for (key, _), line in self.lines.items():
            took.setdefault(key, []).append(line["figures"]["seconds"])
        if not took:
            return None
        usual = mean(map(mean, took.values()))
        return sum(mean(took.get(step.case.key, [usual])) for step in self.missing)


def forecast(steps: Sequence[ComparisonStep], folder: str | os.PathLike[str], about: dict[str, Any]) -> Forecast:
    """Return the forecast of a comparison with all its runs, without writing anything; ``about`` is as the folder would keep it."""
    there = Path(folder)
    if not (there / ABOUT).exists():
        return Forecast(steps, {}, f"it holds a {RESULTS} of something else" if (there / RESULTS).exists() else "")
    try:
        other = json.loads((there / ABOUT).read_text(encoding="utf-8"))
        if differing := difference(other, json.loads(json.dumps(about))):
            return Forecast(steps, {}, f"it holds another comparison, made with {differing}")
        texts = (there / RESULTS).read_text(encoding="utf-8").split("\n")[:-1]
        lines = [line for line in map(json.loads, texts) if not failure(line)]
        return Forecast(steps, {(json.dumps(line["cell"], sort_keys=True), line["repeat"]): line for line in lines})
    except (OSError, ValueError, TypeError, KeyError):
        return Forecast(steps, {}, "it holds something else")
