"""Counted figures of a run, and the report of every run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import torch

from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import SequenceMetrics
from specframe.contracts.roles import Observer
from specframe.devices import kinds
from specframe.observe.stopwatch import Stopwatch


class PaddingCounts(Observer):
    """Counts the tokens that each model computes, and those of them that are real."""

    def __init__(self) -> None:
        self.real: Counter[str] = Counter()
        self.computed: Counter[str] = Counter()

    def fed(self, model: str, real: int, computed: int) -> None:
        """Count the tokens of forwards."""
        self.real[model] += real
        self.computed[model] += computed

    def round(self, report: RoundReport) -> None:
        """Count as padding the draft tokens that were fed as real ones and are not counted as drafted.

        The host knows of them late: where a drafter counts on the device, and where tokens lie beyond a row's limit.
        """
        draft = None if report.transfer is None else report.transfer.draft
        if draft is None or not draft.nodes:
            return
        counts = draft.counts
        fed = len(report.drafted) * draft.nodes if counts is None else int(counts.sum())
        self.real["target"] -= fed - int(report.drafted.sum())

    @property
    def share(self) -> float:
        """Share of padding among the tokens that all models have computed, or 0 if they have computed none."""
        computed = self.computed.total()
        return 1 - self.real.total() / computed if computed else 0.0


class Counts(PaddingCounts):
    """Counts of a run: forwards, tokens, rounds, padding, grouping, acceptance; waits and copies where the device counts them.

    Args:
        device: the target's.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._kind = kinds.of(device)
        self._before, self.waits, self.copies = self._kind.traffic(), 0, 0
        self.forwards: Counter[str] = Counter()
        self.rounds = 0
        self.equal_rounds = 0
        self.shared_rounds = 0
        self.places = 0
        self.empty_places = 0
        self.sequences = 0
        self.tokens = 0
        self.total = SequenceMetrics()

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Count a forward pass."""
        self.forwards[model] += 1

    def round(self, report: RoundReport) -> None:
        """Count a round and the sequences that ended in it."""
        super().round(report)
        before, self._before = self._before, self._kind.traffic()
        self.tokens += sum(report.gained.tolist())
        for sequence in report.finished:
            self.sequences += sequence.finish_reason != "error"
            add(self.total, sequence.metrics)
        if report.prefill:
            return
        if before and self._before:
            self.waits += self._before.waits - before.waits
            self.copies += self._before.copies - before.copies
        lengths = report.lengths.tolist()
        places = max(lengths) * len(lengths)
        self.rounds += 1
        if len(lengths) > 1:
            self.shared_rounds += 1
            self.equal_rounds += min(lengths) == max(lengths)
        self.places += places
        self.empty_places += places - sum(lengths)

    def per_round(self, count: int) -> float | None:
        """Return a count of the device per decoding round, or None if it counts nothing, or there was no round."""
        return count / self.rounds if self._before and self.rounds else None


def add(total: SequenceMetrics, one: SequenceMetrics) -> None:
    """Add one sequence's counts to a total."""
    total.num_spec_steps += one.num_spec_steps
    total.num_draft_tokens += one.num_draft_tokens
    total.num_accepted_draft_tokens += one.num_accepted_draft_tokens
    total.prefix_hit_tokens += one.prefix_hit_tokens
    for accepted, rounds in one.acceptance_histogram.items():
        total.acceptance_histogram[accepted] = total.acceptance_histogram.get(accepted, 0) + rounds


@attrs.frozen
class RunReport:
    """The figures of one run. Their names and definitions are in ``docs/figures.md``."""

    sequences: int
    errors: int
    tokens: int
    """Generated tokens, counted from ids."""
    seconds: float
    """Wall-clock time of all rounds, prompt reading included."""
    rounds: int
    """Decoding rounds; rounds that read prompts are not counted."""
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: dict[int, int]
    stage_seconds: dict[str, float]
    padding_share: float
    """Share of empty slots in the rectangle rows × longest row, over all decoding rounds."""
    grouping_rate: float
    """Share of rounds with rows of equal length, among decoding rounds with more than one row."""
    target_forwards: int
    draft_forwards: int
    peak_kv_bytes: int
    host_syncs: float | None = None
    """Device synchronisations per decoding round, or None if the device does not count them."""
    h2d_copies: float | None = None
    """Copies from the host to the device, per decoding round, or None if the device does not count them."""
    prefix_hit_tokens: int = 0
    """Tokens of prompts that were not fed, since the caches had them."""
    tokens_computed: int = 0
    """Tokens that target and draft model have computed, prompts and padding included."""
    filler_share: float = 0.0
    """Share of padding among them: padding, what rows were not to draft, what rounds the shape of a recorded forward up."""
    state_bytes: int = 0
    """The most bytes of the states of layers without keys and values, part of ``peak_kv_bytes``."""

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over seconds."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def stage_shares(self) -> dict[str, float]:
        """Seconds of each stage over the seconds of all stages."""
        total = sum(self.stage_seconds.values()) or 1.0
        return {stage: seconds / total for stage, seconds in self.stage_seconds.items()}

    @property
    def realign_share(self) -> float:
        """Share of stage "align": time spent on moving keys and values in the cache."""
        return self.stage_shares.get("align", 0.0)

    @property
    def acceptance_per_position(self) -> list[float]:
        """Share of rounds in which the draft token at each place, or a node at each depth, was accepted, from the first on."""
        rounds = sum(self.acceptance_histogram.values())
        deepest = max(self.acceptance_histogram, default=0)
        return [
            sum(count for accepted, count in self.acceptance_histogram.items() if accepted >= place) / rounds
            for place in range(1, deepest + 1)
        ]

    def figures(self) -> dict[str, Any]:
        """Return all figures by name, derived figures included."""
        derived = {
            name: getattr(self, name)
            for name in ("tokens_per_second", "acceptance_per_position", "stage_shares", "realign_share")
        }
        return attrs.asdict(self) | derived


def run_report(counts: Counts, clock: Stopwatch, errors: int, peak_kv_bytes: int, state_bytes: int = 0) -> RunReport:
    """Return the report of a run up to now."""
    total = counts.total
    return RunReport(
        sequences=counts.sequences,
        errors=errors,
        tokens=counts.tokens,
        seconds=clock.seconds,
        rounds=counts.rounds,
        **attrs.asdict(total) | {"acceptance_histogram": dict(sorted(total.acceptance_histogram.items()))},
        mean_acceptance_length=total.mean_acceptance_length,
        draft_acceptance_rate=total.draft_acceptance_rate,
        stage_seconds=clock.stages(),
        padding_share=counts.empty_places / counts.places if counts.places else 0.0,
        grouping_rate=counts.equal_rounds / counts.shared_rounds if counts.shared_rounds else 0.0,
        target_forwards=counts.forwards["target"],
        draft_forwards=counts.forwards["draft"],
        peak_kv_bytes=peak_kv_bytes,
        host_syncs=counts.per_round(counts.waits),
        h2d_copies=counts.per_round(counts.copies),
        tokens_computed=counts.computed.total(),
        filler_share=counts.share,
        state_bytes=state_bytes,
    )
