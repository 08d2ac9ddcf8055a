"""The knee of a memory plan, by runs: how fast each candidate is, what it takes, and whether the least that keeps 96% does so.

    python benchmarks/plan.py [--pair embedded|cpu] [--batches 1,2,4,8] [--lengths 1,3,5] [--rounds 5] [--output FILE]
    python benchmarks/plan.py --shapes vicuna-7b

The first measures: all candidates decode the same held-out prompts in turn, round after round, by wall-clock time, and medians over
rounds are the speeds of the plan. One more run of each, under an allocation counter, is what it took and what was planned. Then
the knee is decoded once more under ``memory=`` of its own bytes, and has to take no more and give the same tokens.

The second measures nothing: it prints the bytes of a pair's shapes in bfloat16 for trees by their nodes, weights left out, with
those of SpecMemo (arXiv 2506.01986, Vicuna-7B, a row).
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
import time
from pathlib import Path
from typing import Any

import attrs
import click
import torch
import transformers
from contenders import held_out_prompts
from grow import PAIRS, load_pair, shape
from specframe_lab.planning.candidates import KNEE, Candidate, CandidatePlan
from specframe_memory.allocations import Allocations
from specframe_memory.footprint import DRAFT, TARGET, Workload
from specframe_memory.memory_plan import ladder_of
from specframe_memory.meta_models import hollow_of
from specframe_memory.meta_parts import hollow_parts

from specframe import Pipeline
from specframe.engine.parts import Constraints, Parts, compose_recipe
from specframe.model.runner import ModelRunner
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry

SPECMEMO = {64: 55.0, 44: 19.5}
"""Megabytes of a query that SpecMemo's abstract and tables give, by the nodes of its tree, weights left out."""
NODES = (64, 44, 32, 16, 8)


def pipeline(models: tuple[Any, Any, Any], rows: int, length: int, **options: Any) -> Pipeline:
    """Return a pipeline by its rows and the tokens that they draft, 0 for none."""
    target, draft, tokenizer = models
    how = {"drafter": draft, "draft_length": length} if length else {"drafter": None}
    return Pipeline(target, tokenizer=tokenizer, batch_size=rows, kv="slab", generation_config=None, **how, **options)


def decoded(pipe: Pipeline, prompts: Any, new: int) -> tuple[float, list[list[int]]]:
    """Return tokens per second and the tokens."""
    started = time.perf_counter()
    found = [one.token_ids for one in pipe.generate(prompts, new)]
    return sum(map(len, found)) / (time.perf_counter() - started), found


def counted(models: tuple[Any, Any, Any], pipe: Pipeline, prompts: Any, new: int, drafts: bool) -> tuple[int, Any]:
    """Return the most bytes that were in use, and the tokens. A run without a drafter has no draft model."""
    counter = Allocations()
    held = models[: 2 if drafts else 1]
    counter.hold([tensor for one in held for tensor in (*one.parameters(), *one.buffers())], "weights")
    with counter:
        _, found = decoded(pipe, prompts, new)
    return counter.peak.total, found


def measured(pair: str, batches: list[int], lengths: list[int], count: int, new: int, rounds: int) -> dict[str, Any]:
    """Return the plan of a pair whose speeds are measured, what each candidate took, and the knee's own run."""
    models = load_pair(pair, torch.device("cpu"), torch.float32)
    prompts = held_out_prompts(models[2], count)
    longest = max(map(len, prompts))
    load = Workload(1, longest, longest + new)
    pipes = {(rows, length): pipeline(models, rows, length) for rows in batches for length in (0, *lengths)}
    rates: dict[tuple[int, int], list[float]] = {key: [] for key in pipes}
    same = None
    for number in range(rounds + 1):
        for key, pipe in pipes.items():
            rate, tokens = decoded(pipe, prompts, new)
            same = same or tokens
            assert tokens == same, f"{key} has other tokens"
            if number:  # the first warms up
                rates[key].append(rate)
    found, taken = [], {}
    for (rows, length), pipe in pipes.items():
        ladder = ladder_of(pipe.recipe, hollow_parts(pipe.recipe, pipe.parts), True)
        step = ladder.step(attrs.evolve(load, rows=rows), length)
        found.append(Candidate.of(step, length, statistics.median(rates[rows, length])))
        taken[rows, length], _ = counted(models, pipeline(models, rows, length), prompts, new, length > 0)
    plan = CandidatePlan(found, None)
    knee, best = plan.knee, plan.best
    bounded = pipeline(
        models, max(batches), max(lengths), memory=knee.bytes + (0 if knee.draft_length else draft_bytes(models))
    )
    peak, tokens = counted(models, bounded, prompts, new, True)
    assert tokens == same, "the run under a bound has other tokens"
    again = [
        decoded(pipes[knee.batch_size, knee.draft_length], prompts, new)[0]
        / decoded(pipes[best.batch_size, best.draft_length], prompts, new)[0]
        for _ in range(rounds)
    ]
    return {
        "pair": pair,
        "candidates": [
            {
                "batch_size": one.batch_size,
                "draft_length": one.draft_length,
                "planned": one.bytes,
                "taken": taken[one.batch_size, one.draft_length],
                "tokens_per_second": round(one.tokens_per_second, 1),
            }
            for one in found
        ],
        "knee": [knee.batch_size, knee.draft_length, knee.bytes],
        "best": [best.batch_size, best.draft_length, best.bytes],
        "knee_keeps": round(statistics.median(again), 3),
        "holds": statistics.median(again) >= KNEE - 0.02,
        "under_bound": {"bound": bounded.recipe.memory, "taken": peak},
    }


def draft_bytes(models: tuple[Any, Any, Any]) -> int:
    """Return the bytes of the draft model, which stays where it is when a run goes without it."""
    return sum(tensor.nbytes for tensor in (*models[1].parameters(), *models[1].buffers()))


def of_shapes(pair: str, prompt: int, new: int) -> list[dict[str, Any]]:
    """Return the bytes of a row of a pair's shapes, weights left out, for trees by their nodes."""
    transformers.logging.set_verbosity_error()
    target, draft = (hollow_of(shape(name), torch.bfloat16) for name in PAIRS[pair])
    found = []
    for nodes in NODES:
        recipe = Recipe(target, f"model,tree=dynamic,nodes={nodes}", draft_length=f"fixed,length=4,nodes={nodes}")
        recipe = recipe.checked().named(registry())
        *_, use = compose_recipe(recipe)
        runner = ModelRunner(target, "target")
        parts = Parts(runner, None, use, Constraints(None, runner.vocabulary, None), draft)
        step = ladder_of(recipe, parts, True).step(Workload(1, prompt, prompt + new), nodes)
        others = {name: count for name, count in step.footprint.parts.items() if name not in (TARGET, DRAFT)}
        found.append(
            {"nodes": nodes, "megabytes": sum(others.values()) / 1e6, "parts": others, "specmemo": SPECMEMO.get(nodes)}
        )
    return found


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", type=click.Choice(["embedded", "cpu"]), default="cpu", show_default=True)
@click.option("--batches", default="1,2,4,8", show_default=True)
@click.option("--lengths", default="1,3,5", show_default=True)
@click.option("--count", default=16, show_default=True, help="Prompts; at least twice the largest batch.")
@click.option("--new", default=64, show_default=True, help="New tokens per prompt.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--shapes", default=None, help="Print the bytes of this pair's shapes, and measure nothing.")
@click.option("--prompt", default=128, show_default=True, help="Tokens of the prompt of --shapes.")
@click.option("--output", default=None, help="A JSON file for all figures.")
def main(
    pair: str,
    batches: str,
    lengths: str,
    count: int,
    new: int,
    rounds: int,
    shapes: str | None,
    prompt: int,
    output: str | None,
) -> None:
    """Measure, or count, and print a line of JSON for each candidate."""
    found: Any
    if shapes is not None:
        found = of_shapes(shapes, prompt, new)
        for one in found:
            print(json.dumps(one), flush=True)
    else:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        found = measured(pair, [*map(int, batches.split(","))], [*map(int, lengths.split(","))], count, new, rounds)
        for one in found["candidates"]:
            print(json.dumps(one), flush=True)
        print(json.dumps({name: value for name, value in found.items() if name != "candidates"}), flush=True)
    if output:
        Path(output).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
