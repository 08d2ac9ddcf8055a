"""Cells measured in turn, round after round, and the figures that come of it."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from contenders import ASSISTED, DRAFTING, PLAIN, Contender, Models
from cost import ModelClock
from exactness import Judge
from roofline import decoding_seconds

LATE, LOST = "not reached in time", "not reached: the device failed before"
PER_RUN = ("realign_share", "own_share", "roofline")


@attrs.define(eq=False)
class Cell:
    """One contender at one batch size: what each round took, by round, and what the first one decoded."""

    contender: Contender
    count: int
    """Number of first prompts that it decodes."""
    rates: dict[int, float] = attrs.Factory(dict)
    """Tokens per second."""
    figures: dict[int, dict[str, float | None]] = attrs.Factory(dict)
    tokens: list[list[int]] | None = None
    acceptance: float | None = None
    fault: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Its name and batch size."""
        return self.contender.name, self.contender.batch

    def release(self) -> None:
        """Let go of what the contender holds, buffers on the device among it; it cannot run again."""
        self.contender = Contender(*self.key, lambda prompts, new: [])


@attrs.frozen
class Plan:
    """How to measure: ``prompts`` suffice for every cell; ``deadline`` is a ``perf_counter`` value."""

    models: Models
    prompts: list[list[int]]
    new: int
    rounds: int
    bandwidth: float
    deadline: float
    clock: Callable[[], float] = time.perf_counter
    """What cells are timed with."""
    progress: Callable[[str], None] = lambda doing: None


def measure(cells: list[Cell], plan: Plan) -> None:
    """Run every cell once per round, in turn, as long as another round is expected to end before the deadline.

    A cell that fails is left out from then on; one that the first round does not reach in time, or after an error that
    the device does not recover from, says so.
    """
    clock = ModelClock(plan.models.target, plan.models.draft)
    try:
        for number in range(plan.rounds):
            started = time.perf_counter()
            for cell in cells:
                if number == 0 and time.perf_counter() > plan.deadline:
                    cell.fault = LATE
                if cell.fault is None and not healthy(plan.models.target.device):
                    cell.fault = LOST
                if cell.fault is None:
                    plan.progress(
                        f"round {number + 1} of {plan.rounds}: {cell.contender.name}, batch {cell.contender.batch}"
                    )
                    protected(cell, number, plan, clock)
            if 2 * time.perf_counter() - started > plan.deadline:
                return
    finally:
        clock.close()


def protected(cell: Cell, number: int, plan: Plan, clock: ModelClock) -> None:
    """Run a cell; whatever goes wrong is noted and the memory it held is freed."""
    try:
        once(cell, number, plan, clock)
    except Exception as fault:  # out of memory, or a scheme that is broken: the other cells go on
        cell.fault = f"{type(fault).__name__}: {str(fault).strip().splitlines()[0] if str(fault).strip() else ''}"[:200]
        gc.collect()
        if healthy(plan.models.target.device) and torch.cuda.is_available():
            torch.cuda.empty_cache()


def healthy(device: torch.device) -> bool:
    """Return whether the device still computes: after an illegal access CUDA refuses everything in this process."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError:
            return False
    return True


def once(cell: Cell, number: int, plan: Plan, clock: ModelClock) -> None:
    """Run a cell for one round, before the first with one batch that is not timed."""
    contender, prompts = cell.contender, plan.prompts[: cell.count]
    if number == 0:
        on_cuda = plan.models.target.device.type == "cuda"
        contender.decode(prompts[: contender.batch], plan.new if on_cuda else 4)
    clock.reset()
    started = plan.clock()
    tokens = contender.decode(prompts, plan.new)
    seconds = plan.clock() - started
    cell.rates[number] = sum(map(len, tokens)) / seconds
    if cell.tokens is None:
        cell.tokens = tokens
    if contender.pipe is None:
        return
    report = contender.pipe.report
    if report.num_spec_steps:
        cell.acceptance = report.mean_acceptance_length
    if contender.volume is None:
        return
    least = contender.volume.bytes_moved(plan.models.target, plan.models.draft) / plan.bandwidth
    decoding = decoding_seconds(report)
    cell.figures[number] = {
        "realign_share": report.realign_share,
        "own_share": clock.own_share(report),
        "roofline": least / decoding if decoding else None,
    }


def summary(cells: list[Cell], judge: Judge | None, deadline: float) -> Iterator[dict[str, Any]]:
    """Yield the figures of each cell: medians over rounds, and medians of ratios within a round."""
    rates = {cell.key: cell.rates for cell in cells}
    for cell in cells:
        name, batch = cell.key
        row: dict[str, Any] = {"contender": name, "batch": batch, "prompts": cell.count, "fault": cell.fault}
        if cell.rates:
            row |= {
                "tokens_per_second": median(cell.rates.values()),
                "by_round": [round(rate, 2) for rate in cell.rates.values()],
                "to_plain": ratio(cell.rates, rates.get((PLAIN, batch))),
                "to_assisted": ratio(cell.rates, rates.get((ASSISTED, 1))),
                "to_draft_model": ratio(cell.rates, rates.get((DRAFTING, batch))),
                "to_batch_1": ratio(cell.rates, rates.get((name, 1))),
                "mean_acceptance_length": cell.acceptance and round(cell.acceptance, 3),
            }
        for figure in PER_RUN:
            row[figure] = median(run[figure] for run in cell.figures.values())
        if judge is not None and cell.tokens is not None:
            found = judge.compare(cell.tokens, deadline)
            row |= {"exactness": str(found), "bugs": found.bugs}
        yield row


def ratio(own: dict[int, float], other: dict[int, float] | None) -> float | None:
    """Return the median ratio over the rounds that both have."""
    return median(own[number] / other[number] for number in own if number in other) if other else None


def median(values: Any) -> float | None:
    """Return the median, to four digits, of what is there, or None of nothing."""
    present = [value for value in values if value is not None]
    return float(f"{statistics.median(present):.4g}") if present else None
