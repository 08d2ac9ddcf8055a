"""Ways to run layers, side by side: modules, traced code, compiled code, and transformers' ``generate``.

    python benchmarks/layers.py [--pair embedded] [--tokens 48] [--repeats 9] [--output FILE.json]

The pair "hybrid" has Qwen3.5's layers, three of four of which keep a state, and random weights.

The same prompts are decoded in turn in each way, with one thread. A figure is the processor time of a new token of all rows; a
ratio is the median of the repeats', each against its own eager run. "first" is the time of the first run: tracing,
compiling, and reading the compiler's cache.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from contenders import held_out_prompts
from grow import PAIRS, load_pair
from hybrid import hybrid
from rich.console import Console
from rich.table import Table

from specframe import Pipeline

WAYS = ("eager", "traced", "compiled")
CASES = ((1, 0), (8, 0), (1, 4), (8, 4))
"""Rows, and draft tokens a round."""


def runs(pair: Any, batch: int, length: int, new: int) -> dict[str, Callable[[], list[list[int]]]]:
    """Return what decodes the prompts of a case in each way, and returns the new tokens."""
    target, draft, tokenizer = pair
    prompts = [one[:24] for one in held_out_prompts(tokenizer, batch)]
    ids = torch.tensor(prompts)

    def ours(pipe: Pipeline) -> list[list[int]]:
        return [result.token_ids for result in pipe.generate(prompts, new)]

    def theirs() -> list[list[int]]:
        with torch.inference_mode():
            found = target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
        return found[:, ids.shape[1] :].tolist()

    drafts: dict[str, Any] = {"drafter": draft, "draft_length": length} if length else {"drafter": None}
    found = {}
    for way in WAYS:
        pipe = Pipeline(target, batch_size=batch, layers=way, generation_config=None, **drafts)
        found[way] = lambda pipe=pipe: ours(pipe)
    return {**found, "generate": theirs}


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", default="embedded", show_default=True, type=click.Choice(["embedded", "hybrid", *PAIRS]))
@click.option("--tokens", default=48, show_default=True, help="New tokens of each prompt.")
@click.option("--repeats", default=9, show_default=True)
@click.option("--output", default=None, help="Where the JSON goes.")
def main(pair: str, tokens: int, repeats: int, output: str | None) -> None:
    """Measure all cases and print a table."""
    torch.set_num_threads(1)
    models, rows = load_pair("embedded" if pair == "hybrid" else pair), []
    if pair == "hybrid":
        models = hybrid(512, 8, 1024, 8, 0), hybrid(192, 4, 384, 4, 1), models[-1]
    for batch, length in CASES:
        decode, first, spent = runs(models, batch, length, tokens), dict[str, float](), dict[str, list[float]]()
        for way, run in decode.items():
            start = time.perf_counter()
            run()
            first[way] = time.perf_counter() - start
        for _ in range(repeats):
            for way, run in decode.items():
                start = time.process_time()
                run()
                spent.setdefault(way, []).append(1e3 * (time.process_time() - start) / tokens)
        for way, each in spent.items():
            ratio = statistics.median(eager / own for eager, own in zip(spent["eager"], each, strict=True))
            rows.append(
                {"batch": batch, "K": length, "way": way, "ms": min(each), "ratio": ratio, "first_s": first[way]}
            )
    table = Table(*rows[0], title=f"{pair}, {tokens} tokens, {repeats} repeats")
    for row in rows:
        table.add_row(*(f"{one:.2f}" if isinstance(one, float) else str(one) for one in row.values()))
    Console().print(table)
    if output:
        told = {"pair": pair, "tokens": tokens, "repeats": repeats, "torch": torch.__version__, "rows": rows}
        Path(output).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
