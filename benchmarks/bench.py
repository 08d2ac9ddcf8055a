"""Tokens per second of specframe's schemes beside transformers' own decoding, interleaved in one run.

    python benchmarks/bench.py [--prompts FILE.jsonl] [--count N] [--new N] [--rounds N] [--threads N] [--output FILE.json]

Every scheme decodes the same prompts in every round, in turn, so that a drift of the machine hits all alike. Medians over
the rounds are reported, and ratios are medians of the ratios within a round. Every scheme's tokens are compared with the
reference decoder's.
"""

from __future__ import annotations

import json
import platform
import statistics
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import click
import torch
import transformers
from rich.console import Console
from rich.table import Table

from specframe import Pipeline
from specframe.prompts import from_file
from specframe.reference import reference_decode

MODULES = ("textwrap", "queue", "statistics", "calendar", "shelve", "bisect", "sched", "fractions")
Decoder = Callable[[list[list[int]], int], list[list[int]]]


def held_out_prompts(tokenizer, count: int) -> list[list[int]]:
    """Return pieces of standard-library modules the embedded pair was not trained on, 24 to 128 tokens long."""
    folder = Path(sysconfig.get_path("stdlib"))
    streams = [tokenizer((folder / f"{name}.py").read_text()).input_ids for name in MODULES]
    prompts = []
    for number in range(count):
        stream, length = streams[number % len(streams)], 24 + 37 * number % 105
        start = (number // len(streams) * 397 + 61) % (len(stream) - length)
        prompts.append(stream[start : start + length])
    return prompts


def ours(pipe: Pipeline) -> Decoder:
    return lambda prompts, new: [result.token_ids for result in pipe.generate(prompts, max_new_tokens=new)]


def theirs(target, draft, batch_size: int, draft_length: int, stops: frozenset[int]) -> Decoder:
    """Return transformers' ``generate`` over batches of left-padded prompts, assisted when a draft is given."""
    options: dict = {"do_sample": False, "pad_token_id": 0}
    if draft is not None:
        draft.generation_config.num_assistant_tokens = draft_length
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        options["assistant_model"] = draft

    def decode(prompts: list[list[int]], new: int) -> list[list[int]]:
        generated = []
        for start in range(0, len(prompts), batch_size):
            part = prompts[start : start + batch_size]
            width = max(map(len, part))
            ids = torch.tensor([[0] * (width - len(p)) + p for p in part])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
            full = target.generate(ids, attention_mask=mask, max_new_tokens=new, **options)[:, width:].tolist()
            generated += [cut(row, stops) for row in full]
        return generated

    return decode


def cut(ids: list[int], stops: frozenset[int]) -> list[int]:
    """Return ids up to and including the first stop id."""
    return next((ids[: place + 1] for place, token in enumerate(ids) if token in stops), ids)


def schemes(base: Pipeline, draft_length: int) -> dict[str, Decoder]:
    """Return every contender by name; plain transformers at the same batch size is what ratios are taken to."""
    target, draft = base.target_model, base.draft_model
    stops = frozenset({target.config.eos_token_id})
    found: dict[str, Decoder] = {}
    for batch in (1, 8):
        found[f"transformers plain b{batch}"] = theirs(target, None, batch, draft_length, stops)
        if batch == 1:
            found["transformers assisted b1"] = theirs(target, draft, 1, draft_length, stops)
        for name, drafter, align in (
            ("plain", None, "ragged"), ("ragged", draft, "ragged"), ("eqspec", draft, "eqspec"), ("exspec", draft, "exspec"),
        ):  # fmt: skip
            pipe = Pipeline(
                target, drafter, align=align, batch_size=batch, draft_length=draft_length, tokenizer=base.tokenizer
            )
            found[f"{name} b{batch}"] = ours(pipe)
    return found


@click.command()
@click.option("--prompts", "file", default=None, help="Prompts, one JSON object per line; default: library source.")
@click.option("--count", default=32, help="Prompts to decode.")
@click.option("--cut", "longest", default=128, help="Tokens a prompt is cut to.")
@click.option("--new", default=64, help="New tokens per prompt.")
@click.option("--draft-length", default=4)
@click.option("--rounds", default=3, help="Timed rounds over all schemes, after one that is not timed.")
@click.option("--threads", default=2, help="CPU threads.")
@click.option("--output", default=None, help="Write the figures here as JSON.")
def main(file, count, longest, new, draft_length, rounds, threads, output) -> None:
    """Run the benchmark and print its table."""
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    base = Pipeline("tiny", "tiny-draft")
    if file:
        prompts = [base.tokenizer(prompt.text).input_ids[:longest] for prompt in from_file(file)[:count]]
    else:
        prompts = held_out_prompts(base.tokenizer, count)
    stops = frozenset({base.target_model.config.eos_token_id})
    expected = [reference_decode(base.target_model, prompt, new, stops) for prompt in prompts]
    tokens = sum(map(len, expected))
    contenders = schemes(base, draft_length)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    exact: dict[str, int] = {}
    for number in range(rounds + 1):
        for name, decode in contenders.items():
            started = time.perf_counter()
            generated = decode(prompts, new)
            if number:
                seconds[name].append(time.perf_counter() - started)
            exact[name] = sum(a == b for a, b in zip(generated, expected, strict=True))
    figures = summary(seconds, exact, tokens)
    show(figures, len(prompts))
    if output:
        where = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        what = {"prompts": len(prompts), "new": new, "draft_length": draft_length, "rounds": rounds, "threads": threads}
        Path(output).write_text(json.dumps({**where, **what, "schemes": figures}, indent=2) + "\n")


def summary(seconds: dict[str, list[float]], exact: dict[str, int], tokens: int) -> dict[str, dict[str, float]]:
    """Return medians by scheme, with the ratios to plain transformers at the same batch and to assisted at batch 1."""
    assisted = seconds["transformers assisted b1"]
    figures = {}
    for name, own in seconds.items():
        plain = seconds[f"transformers plain {name.rpartition(' ')[2]}"]
        figures[name] = {
            "tokens_per_second": round(statistics.median(tokens / s for s in own), 1),
            "to_plain": round(statistics.median(p / s for p, s in zip(plain, own, strict=True)), 3),
            "to_assisted": round(statistics.median(a / s for a, s in zip(assisted, own, strict=True)), 3),
            "exact": exact[name],
        }
    return figures


def show(figures: dict[str, dict[str, float]], prompts: int) -> None:
    """Print the table."""
    table = Table(
        "scheme", "tokens/s", "to transformers plain, same batch", "to assisted, batch 1", f"exact of {prompts}"
    )
    for name, row in figures.items():
        table.add_row(name, *(f"{row[key]:g}" for key in ("tokens_per_second", "to_plain", "to_assisted", "exact")))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
