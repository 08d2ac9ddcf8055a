"""Run a grid of cells under equal conditions: loaded once, warmed up alike, in turns."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, cast

import attrs
from specframe_std.run_command.environment import environment

from specframe.contracts.engine import Clock
from specframe.contracts.roles import BudgetPolicy, CalibratedPolicy
from specframe.devices import kinds
from specframe.engine.encoding import Prompt
from specframe.errors import CompositionError, PromptError, SpecframeError
from specframe.pipeline import Pipeline
from specframe.plugins.compose import strategy
from specframe.plugins.recipe import DEFAULTS
from specframe.plugins.registry import registry
from specframe.text.sampling import Sampling
from specframe_lab.comparison.comparison_observers import Branches, Positions, Rounds, Waits
from specframe_lab.comparison.comparison_results import Comparison, Folder, Line
from specframe_lab.comparison.schemes import PLAIN, SETTING, Case, cases
from specframe_lab.comparison.transformers_generate import generated, line, of_transformers, with_transformers
from specframe_lab.grid import COMPARABLE_RULE, Cell, Grid
from specframe_lab.grid_models import LoadedModels
from specframe_lab.serving.bench_service import BenchService, PassClock
from specframe_lab.serving.serving_figures import of_request
from specframe_lab.verify import encode

WARM_UP_TOKENS = 8
"""New tokens per prompt of a warm-up run."""
CLOCKS: dict[str | None, Callable[[], Clock] | None] = {None: None, "wall": None, "passes": PassClock}
"""What makes the clock that requests arrive by and are timed with, or None if the run's own, the time of its rounds."""

TAKES_THE_BEST = (
    "acceptance rule {rule!r} always takes the most likely token, so that temperature {temperature:g} has no effect: "
    "choose a rule that samples, such as gumbel, block or rejection"
)
"""Reason why a cell cannot be run with a temperature."""


@attrs.frozen
class ComparisonSettings:
    """Settings of all cells of a comparison."""

    prompts: Sequence[Prompt]
    max_new_tokens: int = 64
    repeats: int = 3
    warm_up: int = 1
    """Number of warm-up runs before each measured run of a cell."""
    arrivals: list[float] | None = None
    arrivals_as: str | None = None
    """The arrival option as given by the user."""
    sort: bool = False
    max_prompt_tokens: int | None = None
    """Most tokens of a prompt; longer prompts are cut. None: a prompt that does not fit fails."""
    temperature: float = 0.0
    """Temperature of sampling, or 0 for greedy decoding."""
    max_concurrency: int | None = None
    """Most requests in flight, or None if each is sent when it arrives."""
    clock: str | None = None
    """What times requests: "passes", one second per forward pass of the target, or "wall" (None as well)."""

    categories: Sequence[list[str | int] | None] = ()
    """The category and the turn of each prompt, where it has some."""
    turns: Sequence[int] = ()
    """The turn of each prompt, or none if no prompt is a later turn of a chat."""
    transformers: bool = False
    """Whether transformers decodes plainly, too, at each size of plain decoding."""
    about_prompts: str = ""
    """What the report says of a benchmark set, or "" if the prompts have no name."""

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters of all prompts."""
        return Sampling(temperature=self.temperature)

    def about(self) -> dict[str, Any]:
        """Return the settings for storage, with digests of prompts and arrivals."""
        return {
            "prompts": "; ".join(filter(None, [f"{len(self.prompts)} ({digest(self.prompts)})", self.about_prompts])),
            "max_new_tokens": self.max_new_tokens,
            "repeats": self.repeats,
            "warm_up": self.warm_up,
            "arrivals": f"{self.arrivals_as} ({digest(self.arrivals)})" if self.arrivals else None,
            "sort": self.sort,
            "max_prompt_tokens": self.max_prompt_tokens,
            "temperature": self.temperature,
            "max_concurrency": self.max_concurrency,
            "clock": self.clock if self.clock != "wall" else None,
        }

    def planned(self, grid: Grid) -> list[Case]:
        """Return the cases of a grid, plain decoding first."""
        planned = cases(grid.cells, sampling=self.temperature > 0)
        return with_transformers(planned) if self.transformers else planned

    def prompts_for(self, pipe: Pipeline) -> Sequence[Prompt]:
        """Return the prompts as a pipeline is given them."""
        cut = self.max_prompt_tokens
        return self.prompts if cut is None else encode(pipe, self.prompts, cut)

    def answered(self, cell: Cell, loaded: LoadedModels) -> Self:
        """Return the settings with the answers of a cell's target before later turns: those of plain decoding, for all cells."""
        if all(turn == 1 for turn in self.turns):
            return self
        plain = cell | PLAIN | ({"accept": COMPARABLE_RULE} if self.temperature else {})
        key = json.dumps({option: plain.get(option) for option in SETTING})
        if key not in loaded.chats:
            pipe = loaded.pipeline({option: value for option, value in plain.items() if option != "executor"})
            loaded.chats[key] = with_answers(pipe, self.prompts, self.turns, self.max_new_tokens, self.sampling)
        return attrs.evolve(self, prompts=loaded.chats[key])


def with_answers(
    pipe: Pipeline, prompts: Sequence[Prompt], turns: Iterable[int], new: int, sampling: Sampling
) -> list[Any]:
    """Return prompts in which each later turn has the messages and answers of the turns before it.

    Of a later turn ``prompts`` has the messages of that turn alone; a chat's turns are one after the other. ``pipe`` answers, with
    ``new`` tokens at most.

    Raises:
        PromptError: a turn that has a later one cannot be decoded.
    """
    found: list[Any] = [*prompts]
    places = {place: turn for place, turn in enumerate(turns) if turn > 1}
    for turn in sorted({*places.values()}):
        before = [place - 1 for place in places if places[place] == turn]
        answers = pipe.generate([found[place] for place in before], new, sampling=sampling)
        for place, answer in zip(before, answers, strict=True):
            if answer.error:
                raise PromptError(f"prompt {place}: {answer.error}")
            history = [*found[place], {"role": "assistant", "content": answer.text}]
            found[place + 1] = [*history, *prompts[place + 1]]
    return found


@attrs.frozen
class ComparisonStep:
    """One run to come."""

    case: Case
    repeat: int
    number: int
    total: int


Progress = Callable[[ComparisonStep, Line | None], None]
"""Callback for every step: before the step without a line, after the step with its line."""


def compare(
    grid: Grid,
    settings: ComparisonSettings,
    folder: str | os.PathLike[str],
    command: str = "",
    progress: Progress = lambda step, line: None,
) -> Comparison:
    """Run what is missing of a comparison and return all of it.

    Every model is loaded before the first run. A cell that fails keeps the sentence that says why in place of its
    figures, and the others go on.

    Args:
        grid: checked cells.
        settings: what they share.
        folder: where results are kept, and taken from when they are there already.
        command: the command line, for the report.
        progress: called before and after every run.

    Raises:
        OptionError: a prompt that cannot be decoded, or a folder of something else; nothing is written then.
    """
    planned = settings.planned(grid)
    loaded = LoadedModels()
    kept = Folder(folder, about(grid, planned, settings, command), lambda: check_prompts(planned, [settings], loaded))
    todo = [step for step in steps(planned, settings.repeats) if step.repeat not in kept.lines.get(step.case.key, {})]
    for case in {step.case.key: step.case for step in todo if not of_transformers(step.case)}.values():
        loaded.pipeline(case.cell)
    take(todo, lambda step: run(step, settings, loaded), kept, progress)
    return kept.comparison(planned)


def able_to_sample(grid: Grid, temperature: float) -> Grid:
    """Return a grid with those cells set apart, too, whose acceptance rule cannot draw tokens at the temperature.

    Raises:
        CompositionError: no cell is left.
    """
    able = Grid([], list(grid.refused))
    for cell in grid.cells:
        if temperature and "samples" not in strategy(registry(), "acceptance rule", cell["accept"]).offers:
            able.refused.append((cell, TAKES_THE_BEST.format(rule=cell["accept"], temperature=temperature)))
        else:
            able.cells.append(cell)
    if not able.cells:
        raise CompositionError(able.refused[-1][1])
    return able


def check_prompts(planned: Sequence[Case], shared: Iterable[ComparisonSettings], loaded: LoadedModels) -> None:
    """Raise :class:`OptionError` for a prompt that one of the targets cannot decode."""
    for case in {case.cell["target"]: case for case in reversed(planned)}.values():  # the first of each: plain decoding
        pipe = loaded.pipeline(case.cell)
        for settings in shared:
            encode(pipe, settings.prompts, settings.max_prompt_tokens)


def take(
    todo: Iterable[ComparisonStep], run: Callable[[ComparisonStep], Line], kept: Folder, progress: Progress
) -> None:
    """Take steps one after the other and keep their lines; a cell that failed once is not run again."""
    failed: dict[str, str] = {}
    with settled():
        for step in todo:
            progress(step, None)
            line = {"error": failed[step.case.key]} if step.case.key in failed else run(step)
            if "error" in line:
                failed[step.case.key] = line["error"]
            kept.add(step.case, step.repeat, line)
            progress(step, line)


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Leave the objects of all imported libraries out of garbage collection meanwhile.

    The collection before each run then takes milliseconds in place of a third of a second.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def about(grid: Grid, planned: list[Case], settings: ComparisonSettings, command: str) -> dict[str, Any]:
    """Return the settings that distinguish one comparison from another, and the environment."""
    return beginning(command, settings.about(), planned) | {
        "categories": list(settings.categories),
        "refused": [{"cell": cell, "why": why} for cell, why in grid.refused],
    }


def beginning(command: str, settings: dict[str, Any], planned: list[Case]) -> dict[str, Any]:
    """Return what a folder keeps of any results."""
    return {
        "command": command,
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "settings": settings,
        "environment": environment({case.cell["device"] for case in planned}),
        "cells": [attrs.asdict(case) for case in planned],
    }


def steps(planned: list[Case], repeats: int) -> Iterator[ComparisonStep]:
    """Yield every run of a comparison: all cells once, then all again, there and back.

    A machine that gets slower or faster meanwhile then does so for all cells alike.
    """
    order = [
        (case, repeat)
        for repeat in range(repeats)
        for case in (planned if repeat % 2 == 0 else planned[::-1])
        if case.timed or repeat == 0
    ]
    for number, (case, repeat) in enumerate(order, start=1):
        yield ComparisonStep(case, repeat, number, len(order))


def run(step: ComparisonStep, settings: ComparisonSettings, loaded: LoadedModels) -> Line:
    """Run one cell once and return its line; after a failure the line has the error in place of figures."""
    return attempt(lambda: (transformed if of_transformers(step.case) else measure)(step, settings, loaded))


def attempt(work: Callable[[], Line]) -> Line:
    """Return the line of the work, or a line with its error."""
    try:
        return work()
    except Exception as fault:  # of a broken strategy, or of a device without memory: the others go on
        kind = "" if isinstance(fault, SpecframeError) else f"{type(fault).__name__}: "
        return {"error": f"{kind}{str(fault).partition(chr(10))[0][:500]}"}


def measure(step: ComparisonStep, settings: ComparisonSettings, loaded: LoadedModels) -> Line:
    """Warm a new pipeline up, then decode all prompts with it."""
    positions, branches, waits, rounds = Positions(), Branches(), Waits(), Rounds()
    cell = step.case.cell
    service = BenchService(
        strategy(registry(), "executor", cell.get("executor", DEFAULTS.executor)),
        settings.max_concurrency,
        CLOCKS[settings.clock],
    )
    pipe = loaded.pipeline(cell | {"executor": service}, [positions, branches, waits, rounds])
    prompts, new = settings.answered(cell, loaded).prompts_for(pipe), settings.max_new_tokens
    for _ in range(settings.warm_up if step.case.timed else 0):
        list(pipe.generate(*short_run(pipe, prompts, step.case.batch_size, new), sampling=settings.sampling))
    gc.collect()
    device = pipe.target_model.device
    memory = kinds.of(device)
    memory.watch_memory(device)
    results = list(
        pipe.generate(prompts, new, arrivals=settings.arrivals, sort=settings.sort, sampling=settings.sampling)
    )
    if failed := next((result for result in results if result.error is not None), None):
        raise PromptError(f"prompt {failed.index}: {failed.error}")
    ids, requests = [result.token_ids for result in results], service.moments.lines()
    return {
        "lossless": pipe.composition.lossless,
        "comparable": not settings.temperature or "draft-invariant" in pipe.composition.rule.offers,
        "figures": pipe.report.figures(),
        "parameters": {
            role: sum(weight.numel() for weight in model.parameters())
            for role, model in (("target", pipe.target_model), ("drafter", pipe.draft_model))
            if model is not None
        },
        "peak_device_bytes": memory.most_memory(device),
        "drafted_by_position": positions.drafted.tolist(),
        "accepted_by_position": positions.accepted.tolist(),
        "reached_by_position": positions.reached.tolist(),
        "by_branch": branches.lines(),
        "calibration": calibration(pipe.composition.policy),
        "longest_wait": waits.longest,
        "spec_steps": [result.metrics.num_spec_steps for result in results],
        "accepted": [result.metrics.num_accepted_draft_tokens for result in results],
        "latencies": [of_request(served)["e2el_including_client_queue"] for served in requests],
        "requests": requests,
        "tokens_digest": digest(ids),
        **({"token_ids": ids, "rounds": rounds.lines(len(ids))} if step.repeat == 0 else {}),
    }


def transformed(step: ComparisonStep, settings: ComparisonSettings, loaded: LoadedModels) -> Line:
    """Decode all prompts plainly with transformers, after a short run of it."""
    cell = {option: value for option, value in step.case.cell.items() if option != "decoder"}
    pipe, size, new = loaded.pipeline(cell), step.case.batch_size, settings.max_new_tokens
    prompts = settings.answered(cell, loaded).prompts_for(pipe)
    for _ in range(settings.warm_up):
        generated(pipe, prompts[:size], size, min(WARM_UP_TOKENS, new))
    ids, ends = generated(pipe, prompts, size, new)
    kept = {"token_ids": ids} if step.repeat == 0 else {}
    return line(ids, ends) | {"tokens_digest": digest(ids)} | kept


def short_run(pipe: Pipeline, prompts: Sequence[Prompt], rows: int, new: int) -> tuple[Sequence[Prompt], int]:
    """Return one batch of prompts, and how many new tokens each gets in a warm-up run.

    Captured graphs are of caches as large as the run's, and of the lengths that rows come to. So the longest prompt is one of the
    batch on a device with graphs, and all tokens are generated.
    """
    if kinds.of(pipe.device).recording is None or pipe.recipe.graphs == "off":
        return prompts[:rows], min(WARM_UP_TOKENS, new)
    longest = max(range(len(prompts)), key=lambda index: len(pipe.encode(prompts[index])))
    first = [index for index in range(len(prompts)) if index != longest]
    return [prompts[index] for index in [longest, *first][:rows]], new


def calibration(policy: BudgetPolicy) -> list[list[float]] | None:
    """Return the bins of a policy's calibration, or None if it has none."""
    if "calibration" not in policy.offers:
        return None
    return cast(CalibratedPolicy, policy).calibrated().tolist()


def digest(value: Any) -> str:
    """Return a short text that distinguishes values."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
