"""Processes that decode the same rows: ``python ranks_worker.py FOLDER RANKS CASE...``.

Each case is a function below or in ``PLAIN``; what comes of it is written to ``FOLDER/CASE.RANK.json``.

Rank 0 is the process that is started. The others are forked from it once torch is imported, which takes longer than most cases; how
they end is written to ``FOLDER/ended.json``.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from click.testing import CliRunner
from specframe_std.acceptance.greedy import Greedy
from specframe_std.drafters.prompt_lookup import PromptLookup
from specframe_std.kv.slab import Slab, SlabStore
from transformers import AutoModelForCausalLM

from specframe import Pipeline, Sampling
from specframe.cli import cli
from specframe.contracts.requests import Request
from specframe.engine.engine_clock import HandClock
from specframe.errors import SpecframeWarning

torch.set_num_threads(1)

FOLDER, RANK, RANKS = Path(sys.argv[1]), 0, int(sys.argv[2])
PROMPTS = [[5, 9, 31, 7, 2, 60], [11], [40, 41, 42, 43, 44, 45, 46, 47, 48], [8, 3, 77, 15], [90, 1, 33]]
NEW = [12, 9, 14, 6, 11]


def pipeline(target: str = "target", **options: Any) -> Any:
    usual = {"drafter": str(FOLDER / "drafter"), "executor": "tp", "draft_length": 3, "generation_config": None}
    usual |= {"batch_size": 3, "device": "cpu"}
    return Pipeline(target=target if target == "tiny" else str(FOLDER / target), **usual | options)


def tokens(pipe: Any, **more: Any) -> Any:
    numbered = enumerate(zip(PROMPTS, NEW, strict=True))
    asked = [Request(i, ids, new, frozenset({0}), **more) for i, (ids, new) in numbered]
    done = sorted(pipe.decode(asked), key=lambda result: result.index)
    return [[result.token_ids, result.finish_reason] for result in done]


PLAIN: dict[str, dict[str, Any]] = {
    "pieces": {"schedule": "continuous,piece=4"},
    "lookup": {"drafter": "prompt-lookup"},
    "kept": {"kv": "paged,block=4,share=on"},
    "buffered": {"graphs": "on"},
    "three_heads": {"target": "llama"},
    "no_plan": {"target": "gpt2"},
    "device": {"device": "cuda:1"},
    "bitwise": {"bitwise": True},
}
"""Cases that are a pipeline's tokens with these options."""


def exact(align: str, policy: str, target: str = "target") -> Any:
    return tokens(pipeline(target, align=align, draft_length=policy))


def head(name: str) -> Any:
    return tokens(pipeline("tiny", drafter=name))


def sharded() -> Any:
    pipe = pipeline(executor="tp,draft=sharded")
    kinds = {role: type(next(model.parameters())).__name__ for role, model in models(pipe).items()}
    return [tokens(pipe), kinds]


def models(pipe: Any) -> dict[str, Any]:
    return {"target": pipe.target_model, "draft": pipe.draft_model}


def drawn() -> Any:
    pipe = pipeline(accept="gumbel", seed=3)
    done = pipe.generate(PROMPTS, 8, sampling=Sampling(temperature=1.0, samples=2))
    return [result.token_ids for result in done]


class Failing:
    """A slab whose stores fail on rank 1: in a write of a layer, or when they are opened with more than one row.

    Args:
        fail: what happens then.
        write: the number of the write, or None for opening fails.
    """

    needs, offers = Slab.needs, Slab.offers

    def __init__(self, fail: Callable[[], None], write: int | None = None) -> None:
        self._fail, self._write, self._writes = fail, write, 0

    def open(self, shapes: Any, rows: int, capacity: int, device: Any) -> Any:
        if RANK == 1 and self._write is None and rows > 1:
            self._fail()
        backend = self

        class Store(SlabStore):
            def write(self, *given: Any) -> Any:
                backend._writes += 1
                if RANK == 1 and backend._writes == backend._write:
                    backend._fail()
                return super().write(*given)

        return Store(shapes, rows, capacity + 1, device)


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def out_of_memory() -> Any:
    """Memory runs out on rank 1 in the second layer of a forward: rank 0 waits for it in the sum after that layer."""
    with warnings.catch_warnings(record=True) as told:
        warnings.filterwarnings("always" if RANK == 0 else "ignore", category=SpecframeWarning)
        pipe = pipeline(kv=Failing(raising(torch.OutOfMemoryError("no memory for 3 rows")), 22))
        found = tokens(pipe)
    return [found, pipe._engine._limits.batch_size, [str(one.message) for one in told if "memory" in str(one.message)]]


def no_memory_to_open() -> Any:
    """Memory runs out on rank 1 when caches are opened: rank 0 has opened its own, and feeds."""
    pipe = pipeline(kv=Failing(raising(torch.OutOfMemoryError("no memory for a cache"))))
    return [tokens(pipe), pipe._engine._limits.batch_size]


def missed() -> Any:
    """Memory runs out on rank 1 when its drafter receives a committed round."""

    class Missing(PromptLookup):
        told = 0

        def observe(self, outcome: Any) -> None:
            self.told += 1
            if RANK == 1 and self.told == 3:
                raise torch.OutOfMemoryError("no memory to learn")

    return [tokens(pipeline(drafter="prompt-lookup")), tokens(pipeline(drafter=Missing()))]


def failing() -> Any:
    """A strategy fails on rank 1."""
    return tokens(pipeline(kv=Failing(raising(ValueError("a slot is on fire")), 22)))


def killed() -> Any:
    """The process of rank 1 ends in the middle of a forward, without a word."""
    return tokens(pipeline(kv=Failing(lambda: os.kill(os.getpid(), signal.SIGKILL), 22)))


def gone() -> Any:
    """The program of rank 1 ends before that of rank 0 decodes."""
    pipe = pipeline()
    return None if RANK == 1 else tokens(pipe)


def parted() -> Any:
    """Rank 1 chooses another token."""

    class Otherwise(Greedy):
        def accept(self, *given: Any) -> Any:
            acceptance = super().accept(*given)
            if RANK == 1:
                acceptance.tokens_BT.fill_(4)
            return acceptance

    return tokens(pipeline(accept=Otherwise()))


def whole() -> Any:
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "target")
    return tokens(Pipeline(target=model, drafter="none", executor="tp", device="cpu"))


def late() -> Any:
    """The clock of rank 1 shows that all time is up."""
    real, hours = time.perf_counter, itertools.count()
    if RANK == 1:
        time.perf_counter = lambda: real() + 3600 * next(hours)
    try:
        return tokens(pipeline(), max_time=3600.0)
    finally:
        time.perf_counter = real


def aborted() -> Any:
    """Each rank ends another request; that of rank 0 ends."""
    pipe = pipeline()
    engine, done = pipe.executor.open(pipe.recipe, pipe.parts, [], HandClock()), []
    for index, ids in enumerate(PROMPTS):
        engine.add(Request(index, ids, 10))
    engine.step()
    gone = engine.abort((RANK, 0))
    while not engine.idle:
        if report := engine.step():
            done += [[sequence.request.index, sequence.token_ids] for sequence in report.finished]
    engine.close()
    return [gone.request.index, done]


def command() -> Any:
    """``specframe run`` on every rank."""
    models = ["--target", str(FOLDER / "target"), "--drafter", str(FOLDER / "drafter"), "--device", "cpu"]
    files = ["--output", str(FOLDER / "out.jsonl"), "--report", str(FOLDER / "report.json")]
    how = ["--executor", "tp", "--max-new-tokens", "6", "--batch-size", "2"]
    ended = CliRunner().invoke(cli, ["run", *models, *files, *how, "def f", "x ="])
    return [ended.exit_code, ended.output]


def main() -> None:
    for case in sys.argv[3:]:
        name, _, options = case.partition(":")
        try:
            given = options.split(":") if options else ()
            found = tokens(pipeline(**PLAIN[name])) if name in PLAIN else globals()[name](*given)
        except Exception as error:
            found = {"error": type(error).__name__, "told": str(error)}
        (FOLDER / f"{case}.{RANK}.json").write_text(json.dumps(found))


def forked() -> list[int]:
    """Fork the other ranks; return their process ids in rank 0, nothing in the others."""
    global RANK
    others = []
    for rank in range(1, RANKS):
        if pid := os.fork():
            others.append(pid)
        else:
            RANK, others = rank, []
            log = os.open(FOLDER / f"log{rank}.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            break
    os.environ |= {"RANK": str(RANK), "LOCAL_RANK": str(RANK), "WORLD_SIZE": str(RANKS)}
    return others


if __name__ == "__main__":
    others = forked()
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=RANKS)
    main()
    if RANK == 0:
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in others]
        (FOLDER / "ended.json").write_text(json.dumps(ended))
