"""The figures of all actors, as those of one run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specframe.observe.counts import RunReport

SUMS = ("sequences", "tokens", "rounds", "target_forwards", "draft_forwards", "tokens_computed", "prefix_hit_tokens")
DRAFTS = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")


class Tally:
    """Keeps what actors report, in a process that has no torch."""

    def __init__(self) -> None:
        self._reports: list[dict[str, Any]] = []
        self._failed = self._rows = 0

    def add(self, report: dict[str, Any]) -> None:
        """Keep the fields of the report of one run of an actor."""
        self._reports.append(report)

    def fail(self, count: int) -> None:
        """Count rows that failed."""
        self._failed += count

    def decoded(self, count: int) -> None:
        """Count rows that have results."""
        self._rows += count

    def rows(self) -> int:
        """Return how many rows have results."""
        return self._rows

    def all(self) -> tuple[list[dict[str, Any]], int]:
        """Return the fields of all reports, and the number of rows that failed."""
        return self._reports, self._failed


def merged(reports: list[RunReport], seconds: float, errors: int) -> RunReport:
    """Return the figures of several runs as one run's that took ``seconds``; shares are weighted by what they are of."""
    from specframe.observe.counts import RunReport

    total = {name: sum(getattr(one, name) for one in reports) for name in (*SUMS, *DRAFTS)}
    rounds, computed = total["rounds"] or 1, total["tokens_computed"] or 1
    counted: Counter[int] = Counter()
    stages: Counter[str] = Counter()
    for one in reports:
        counted.update(one.acceptance_histogram)
        for stage, spent in one.stage_seconds.items():
            stages[stage] += spent  # type: ignore[assignment]
    steps, drafted, accepted = (total[name] for name in DRAFTS)
    whole: dict[str, Any] = {
        "seconds": seconds,
        "errors": errors,
        "mean_acceptance_length": 1 + accepted / steps if steps else 0.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": dict(sorted(counted.items())),
        "stage_seconds": dict(stages),
        "padding_share": sum(one.padding_share * one.rounds for one in reports) / rounds,
        "grouping_rate": sum(one.grouping_rate * one.rounds for one in reports) / rounds,
        "filler_share": sum(one.filler_share * one.tokens_computed for one in reports) / computed,
        "peak_kv_bytes": max((one.peak_kv_bytes for one in reports), default=0),
        "state_bytes": max((one.state_bytes for one in reports), default=0),
    }
    return RunReport(**{**total, **whole})
