"""One of the processes that decode the same rows: ``python ranks_worker.py FOLDER RANK RANKS CASE...``.

Each case is a function below; what it returns is written to ``FOLDER/CASE.RANK.json``, or the error that it raises.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

torch.set_num_threads(1)

FOLDER, RANK, RANKS = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
PROMPTS = [[5, 9, 31, 7, 2, 60], [11], [40, 41, 42, 43, 44, 45, 46, 47, 48], [8, 3, 77, 15], [90, 1, 33]]
NEW = [12, 9, 14, 6, 11]


def pipeline(target: str = "target", **options: Any) -> Any:
    from specframe import Pipeline

    usual = {"drafter": str(FOLDER / "drafter"), "executor": "tp", "draft_length": 3, "generation_config": None}
    usual |= {"batch_size": 3, "device": "cpu"}
    return Pipeline(target=str(FOLDER / target), **usual | options)


def tokens(pipe: Any, **more: Any) -> Any:
    from specframe.contracts.requests import Request

    asked = [
        Request(i, ids, new, frozenset({0}), **more) for i, (ids, new) in enumerate(zip(PROMPTS, NEW, strict=True))
    ]
    done = sorted(pipe.decode(asked), key=lambda result: result.index)
    return [[result.token_ids, result.finish_reason] for result in done]


def exact(align: str, policy: str, **options: Any) -> Any:
    return tokens(pipeline(align=align, draft_length=policy, **options))


def sharded() -> Any:
    pipe = pipeline(executor="tp,draft=sharded")
    kinds = {role: type(next(model.parameters())).__name__ for role, model in models(pipe).items()}
    return [tokens(pipe), kinds]


def models(pipe: Any) -> dict[str, Any]:
    return {"target": pipe.target_model, "draft": pipe.draft_model}


def replicated() -> Any:
    pipe = pipeline()
    return {role: type(next(model.parameters())).__name__ for role, model in models(pipe).items()}


def drawn() -> Any:
    from specframe import Sampling

    pipe = pipeline(accept="gumbel", seed=3)
    done = pipe.generate(PROMPTS, 8, sampling=Sampling(temperature=1.0, samples=2))
    return [result.token_ids for result in done]


class Failing:
    """A KV backend whose stores raise an error, on rank 1, in the write of a layer."""

    def __init__(self, error: Exception, write: int) -> None:
        from specframe_std.kv.slab import Slab

        self._inner, self._left, self._error = Slab(), write if RANK == 1 else 10**9, error
        self.needs, self.offers = self._inner.needs, self._inner.offers

    def open(self, *given: Any) -> Any:
        store = self._inner.open(*given)
        write = store.write

        def failing(*given: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                raise self._error
            return write(*given)

        store.write = failing
        return store


def out_of_memory() -> Any:
    """Memory runs out on rank 1, in the second layer of a forward in the middle of a run: rank 0 waits in the first layer's sum."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if RANK:
            from specframe.errors import SpecframeWarning

            warnings.filterwarnings("ignore", category=SpecframeWarning)
        pipe = pipeline(kv=Failing(torch.OutOfMemoryError("no memory for 3 rows"), 22))
        found = tokens(pipe)
    return [found, pipe._engine._batch_size, [str(one.message) for one in told if "memory" in str(one.message)]]


def no_memory_to_open() -> Any:
    """Memory runs out on rank 1 when caches are opened: rank 0 has opened its own, and feeds."""

    class Small(Failing):
        def open(self, *given: Any) -> Any:
            if RANK == 1 and given[1] > 1:
                raise torch.OutOfMemoryError("no memory for a cache")
            return self._inner.open(*given)

    pipe = pipeline(kv=Small(ValueError(), 10**9))
    return [tokens(pipe), pipe._engine._batch_size]


def failing() -> Any:
    """A strategy fails on rank 1."""
    return tokens(pipeline(kv=Failing(ValueError("a slot is on fire"), 22)))


def parted() -> Any:
    """Rank 1 chooses another token."""
    from specframe_std.acceptance.greedy import Greedy

    class Otherwise(Greedy):
        def judge(self, *given: Any) -> Any:
            verdict = super().judge(*given)
            if RANK == 1:
                verdict.tokens_BT.fill_(4)
            return verdict

    return tokens(pipeline(accept=Otherwise()))


def three_heads() -> Any:
    return tokens(pipeline("llama"))


def no_plan() -> Any:
    return tokens(pipeline("gpt2"))


def whole() -> Any:
    from transformers import AutoModelForCausalLM

    return tokens(pipeline(drafter=None) if False else _given(AutoModelForCausalLM.from_pretrained(FOLDER / "target")))


def _given(model: Any) -> Any:
    from specframe import Pipeline

    return Pipeline(target=model, drafter="none", executor="tp", device="cpu")


def device() -> Any:
    return tokens(pipeline(device="cuda:1"))


def bitwise() -> Any:
    return tokens(pipeline(bitwise=True))


def late() -> Any:
    """The clock of rank 1 shows that all time is up."""
    real = time.perf_counter
    if RANK == 1:
        time.perf_counter = lambda: real() * 1000
    try:
        return tokens(pipeline(), max_time=3000.0)
    finally:
        time.perf_counter = real


def aborted() -> Any:
    """Each rank ends another request; that of rank 0 ends."""
    from specframe.contracts.requests import Request
    from specframe.engine.arrivals import HandClock

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
    from click.testing import CliRunner

    from specframe.cli import cli

    models = ["--target", str(FOLDER / "target"), "--drafter", str(FOLDER / "drafter"), "--device", "cpu"]
    files = ["--output", str(FOLDER / "out.jsonl"), "--report", str(FOLDER / "report.json")]
    how = ["--executor", "tp", "--max-new-tokens", "6", "--batch-size", "2"]
    ended = CliRunner().invoke(cli, ["run", *models, *files, *how, "def f", "x ="])
    return [ended.exit_code, ended.output]


def main() -> None:
    for case in sys.argv[4:]:
        name, _, options = case.partition(":")
        try:
            found = globals()[name](*options.split(":") if options else ())
        except Exception as error:
            found = {"error": type(error).__name__, "told": str(error)}
        (FOLDER / f"{case}.{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=RANKS)
    main()
