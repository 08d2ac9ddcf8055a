"""Whether logits are the same to the bit at any batch, with drafts and without, and what that costs.

    python benchmarks/bitwise.py [--pair cpu] [--dtypes float32,bfloat16] [--batches 1,8] [--trees chain,3/2/1,dynamic]
        [--device cpu|cuda] [--prompts FILE]

Prompts are decoded plainly at batch 1, then with drafts of each shape at each batch size under each alignment, all with bitwise.
All logits of all tokens have to be equal to the bit; *plain* says in how many prompts they are without bitwise. The price is the
time of a run with bitwise over that of the same run without, taken in turns, a median over rounds; on a CPU processor time, for a
machine others use too. Exits with 1 when a bit differs.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click
import torch
import transformers
from contenders import held_out_prompts
from grow import load_pair
from rich.console import Console
from rich.table import Table
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_std.prompts.files import from_file
from specframe_testing.logits import KeptLogits, Logits, parted

from specframe.models import loading
from specframe.pipeline import Pipeline


@attrs.frozen
class Decoder:
    """A pair in one precision, and the prompts."""

    target: Any
    draft: Any
    tokenizer: Any
    prompts: list[list[int]]
    new: int

    def logits(
        self, batch: int, align: str = "ragged", tree: str = "chain", length: int = 0, bitwise: bool = True
    ) -> tuple[Logits, float]:
        """Decode all prompts; return the logits of every token, and the seconds; a draft ``length`` of 0: plainly."""
        rule = KeptLogits()
        pipe = Pipeline(
            target=self.target,
            drafter=drafter(tree) if length else None,
            tokenizer=self.tokenizer,
            accept=rule,
            align=align,
            batch_size=batch,
            draft_length=length or 1,
            generation_config=None,
            bitwise=bitwise,
        )
        pipe.parts.draft = self.draft if length else None
        clock = time.process_time if self.target.device.type == "cpu" else time.perf_counter
        started = clock()
        list(pipe.generate(self.prompts, self.new))
        return rule.logits, clock() - started


def drafter(tree: str) -> ModelDrafter:
    """Return the drafter of a chain, of a dynamic tree, or of a tree with a number of branches at each depth, as 3/2/1."""
    return ModelDrafter(tree=tree) if tree in ("chain", "dynamic") else ModelDrafter(branch=tree)


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", default="cpu", show_default=True)
@click.option("--dtypes", default="float32,bfloat16", show_default=True)
@click.option("--batches", default="1,8", show_default=True)
@click.option("--aligns", default="ragged", show_default=True)
@click.option(
    "--trees", default="chain", show_default=True, help="Shapes of drafts: chain, dynamic, or branches as 3/2/1."
)
@click.option("--draft-length", default=5, show_default=True)
@click.option("--count", default=8, show_default=True, help="Prompts; those of a file: at most.")
@click.option("--new", default=24, show_default=True, help="New tokens per prompt.")
@click.option("--longest", default=128, show_default=True, help="Tokens of a prompt, at most.")
@click.option("--rounds", default=3, show_default=True, help="0: nothing is decoded without bitwise.")
@click.option("--prompts", "file", default=None, help="A prompt file; default: held-out library source.")
@click.option("--device", default="auto", show_default=True)
@click.option("--budget", default=600.0, show_default=True, help="Seconds; what is not reached says so.")
@click.option("--output", default=None, help="Write the rows here as JSON.")
def main(**options: Any) -> None:
    """Compare, print a table, and exit with 1 where a bit differs."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows = []
    for row in compare(options, time.perf_counter() + options["budget"]):
        rows.append(row)
        if options["output"]:  # after every row: what is known stays known whatever happens next
            Path(options["output"]).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    show(rows, options["pair"])
    sys.exit(any(row["bugs"] or row["fault"] for row in rows))


def compare(options: dict[str, Any], deadline: float) -> Iterator[dict[str, Any]]:
    """Yield a row per precision, batch size, alignment and shape of the draft."""
    device = loading.pick_device(options["device"])
    for dtype in options["dtypes"].split(","):
        target, draft, tokenizer = load_pair(options["pair"], device, loading.pick_dtype(dtype, device))
        decoder = Decoder(target, draft, tokenizer, read(options, tokenizer), options["new"])
        wanted: Logits | None = None
        for batch in map(int, options["batches"].split(",")):
            for align, tree in itertools.product(options["aligns"].split(","), options["trees"].split(",")):
                row = {"dtype": dtype, "align": align, "tree": tree, "batch": batch, "count": len(decoder.prompts)}
                row |= {"bugs": 0, "fault": None, "equal": None, "plain": None, "price": None}
                if time.perf_counter() > deadline:
                    yield row | {"equal": "not reached in time"}
                    continue
                try:
                    wanted = wanted or decoder.logits(1)[0]
                    yield row | one(decoder, wanted, row, options["draft_length"], options["rounds"])
                except Exception as fault:  # a device may raise anything; the others go on
                    yield row | {"fault": f"{type(fault).__name__}: {fault}"[:200]}


def read(options: dict[str, Any], tokenizer: Any) -> list[list[int]]:
    """Return the prompts' ids."""
    if options["file"] is None:
        return held_out_prompts(tokenizer, options["count"], options["longest"])
    texts = [prompt.text for prompt in from_file(options["file"])][: options["count"]]
    return [tokenizer(text).input_ids[: options["longest"]] for text in texts]


def one(decoder: Decoder, wanted: Logits, row: dict[str, Any], length: int, rounds: int) -> dict[str, Any]:
    """Return in how many prompts all logits are equal to those wanted, with bitwise and without, and the price."""
    how, count = (row["batch"], row["align"], row["tree"], length), row["count"]
    found, _ = decoder.logits(*how)
    bugs = len(parted(found, wanted) | dict.fromkeys({index for index, _ in wanted.keys() - found.keys()}, 0))
    told: dict[str, Any] = {"bugs": bugs, "equal": f"{count - bugs} of {count}"}
    if rounds:
        plain, prices = decoder.logits(1, bitwise=False)[0], []
        for _ in range(rounds):
            prices.append(decoder.logits(*how)[1])
            without, seconds = decoder.logits(*how, bitwise=False)
            prices[-1] /= seconds
        told |= {"plain": f"{count - len(parted(without, plain))} of {count}", "prices": prices}
        told["price"] = round(statistics.median(prices), 2)
    return told


def show(rows: list[dict[str, Any]], pair: str) -> None:
    """Print a line per row."""
    columns = "dtype", "align", "tree", "batch", "equal", "plain", "price"
    table = Table(*columns, "fault", title=f"bitwise equality, pair {pair}")
    for row in rows:
        table.add_row(*("" if row[name] is None else str(row[name]) for name in columns), row["fault"] or "")
    Console(width=132).print(table)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
