"""Every scheme's tokens held against the reference decoder's, on grown pairs, in several precisions.

    python benchmarks/equivalence.py [--pairs small,cpu] [--dtypes float32,bfloat16] [--batches 1,3,8] [--device cpu|cuda]

In float32 tokens have to be equal, save at a tie; so have they in lower precision, where ties are common. Exits with 1 when a
scheme parts from the reference where rounding does not explain it. transformers' own ``generate`` is held against it too.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch
import transformers
from contenders import Models, contenders, held_out_prompts
from exactness import Judge
from grow import load_pair
from rich.console import Console
from rich.table import Table

from specframe.models import loading


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pairs", default="small,cpu", show_default=True)
@click.option("--dtypes", default="float32,bfloat16", show_default=True)
@click.option("--batches", default="1,3,8", show_default=True)
@click.option("--draft-length", default=5, show_default=True)
@click.option("--count", default=8, show_default=True, help="Prompts.")
@click.option("--new", default=40, show_default=True, help="New tokens per prompt.")
@click.option("--device", default="auto", show_default=True)
@click.option("--budget", default=600.0, show_default=True, help="Seconds; what is not reached says so.")
@click.option("--output", default=None, help="Write the rows here as JSON.")
def main(**options: Any) -> None:
    """Compare, print a table, and exit with 1 on a bug or an error."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows = []
    with Console(stderr=True).status("comparing") as status:
        for row in compare(options, time.perf_counter() + options["budget"]):
            rows.append(row)
            status.update(f"{row['pair']}, {row['dtype']}, {row['scheme']}, batch {row['batch']}")
            if options["output"]:  # after every row: what is known stays known whatever happens next
                Path(options["output"]).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    show(rows)
    sys.exit(any(row["bugs"] or row["fault"] for row in rows))


def compare(options: dict[str, Any], deadline: float) -> Iterator[dict[str, Any]]:
    """Yield a row per pair, precision, batch size and scheme."""
    device = loading.pick_device(options["device"])
    for pair in options["pairs"].split(","):
        for dtype in options["dtypes"].split(","):
            target, draft, tokenizer = load_pair(pair, device, loading.pick_dtype(dtype, device))
            models = Models(target, draft, tokenizer, loading.stop_token_ids(target, tokenizer))
            prompts = held_out_prompts(tokenizer, options["count"])
            judge = Judge(models, prompts, options["new"])
            for batch in map(int, options["batches"].split(",")):
                for contender in contenders(models, batch, options["draft_length"]):
                    where = {"pair": pair, "dtype": dtype, "batch": batch, "scheme": contender.name}
                    yield where | one(contender.decode, judge, prompts, options["new"], deadline)


def one(decode: Any, judge: Judge, prompts: list[list[int]], new: int, deadline: float) -> dict[str, Any]:
    """Return how one scheme compares, or why that cannot be said."""
    row: dict[str, Any] = {"exactness": "", "bugs": 0, "fault": None}
    if time.perf_counter() > deadline:
        return row | {"exactness": "not reached in time"}
    try:
        found = judge.compare(decode(prompts, new), deadline)
    except Exception as fault:  # a broken scheme may raise anything; the others go on
        return row | {"fault": f"{type(fault).__name__}: {fault}"[:200]}
    return row | {"exactness": str(found), "bugs": found.bugs}


def show(rows: list[dict[str, Any]]) -> None:
    """Print a line per scheme, a column per batch size."""
    batches = sorted({row["batch"] for row in rows})
    table = Table(
        "pair", "dtype", "scheme", *(f"batch {batch}" for batch in batches), title="equal to the reference decoder"
    )
    cells = {(r["pair"], r["dtype"], r["scheme"], r["batch"]): r["fault"] or r["exactness"] for r in rows}
    for key in dict.fromkeys((row["pair"], row["dtype"], row["scheme"]) for row in rows):
        table.add_row(*key, *(cells.get((*key, batch), "") for batch in batches))
    Console(width=132).print(table)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
