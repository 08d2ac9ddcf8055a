"""What a round spends on logits processors: their calls, and the time, of one row and of many.

    python benchmarks/processors.py [--rounds 9] [--vocabulary 2048] [--output FILE.json]

A round shapes the logits after each row's last token and after each of 8 draft tokens. Rows have 100 to 500 tokens, no two the same
number. Calls are those of all processors together; seconds are processor time of one thread, the median over rounds.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import generation as hf

from specframe import Sampling
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch, Sequence
from specframe.text.generation import GenerationSettings
from specframe.text.sampling import apply_processors

DRAFTED = 8
"""Draft tokens per row."""
ROWS = (1, 8, 64)
SAMPLINGS = {
    "nothing": Sampling(),
    "repetition penalty": Sampling(repetition_penalty=1.2),
    "temperature, top_p": Sampling(temperature=0.8, top_p=0.95),
    "repetition penalty, temperature, top_p": Sampling(repetition_penalty=1.2, temperature=0.8, top_p=0.95),
}
COUNTED = (hf.RepetitionPenaltyLogitsProcessor, hf.TemperatureLogitsWarper, hf.TopPLogitsWarper)
"""The classes of their processors."""


@click.command(help=__doc__.partition("\n")[0])
@click.option("--rounds", default=9, show_default=True, help="Rounds of 64 rows; of fewer rows as many more.")
@click.option("--vocabulary", default=2048, show_default=True)
@click.option("--output", default=None, help="Write the rows here as JSON.")
def main(rounds: int, vocabulary: int, output: str | None) -> None:
    """Time every case and print a table."""
    torch.set_num_threads(1)
    figures = []
    for name in SAMPLINGS:
        for rows in ROWS:
            figures.append(timed(name, rows, vocabulary, rounds))
            if output:  # after every case: what is known stays known whatever happens next
                Path(output).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    table = Table("parameters", "rows", "calls", "ms a round", title=f"{vocabulary} scores, {DRAFTED} draft tokens")
    for one in figures:
        table.add_row(one["parameters"], str(one["rows"]), str(one["calls"]), f"{one['milliseconds']:.3f}")
    Console(width=100).print(table)


@torch.inference_mode()
def timed(name: str, rows: int, vocabulary: int, rounds: int) -> dict[str, Any]:
    """Return the figures of one case."""
    generator = torch.Generator().manual_seed(0)
    batch = batch_of(SAMPLINGS[name], rows, vocabulary, generator)
    drafted_BN = torch.randint(vocabulary, (rows, DRAFTED), generator=generator)
    logits_BTV = torch.randn(rows, DRAFTED + 1, vocabulary, generator=generator)
    calls, times = counted(batch, drafted_BN, logits_BTV), []
    for _ in range(rounds * max(ROWS) // rows):
        start = time.process_time()
        apply_processors(batch, drafted_BN, logits_BTV)
        times.append(time.process_time() - start)
    return {"parameters": name, "rows": rows, "calls": calls, "milliseconds": round(1e3 * statistics.median(times), 4)}


def counted(batch: Batch, drafted_BN: torch.Tensor, logits_BTV: torch.Tensor) -> int:
    """Shape a round, and return the number of calls of processors."""
    calls: list[None] = []
    usual: dict[type, Any] = {kind: kind.__call__ for kind in COUNTED}
    for kind, call in usual.items():
        kind.__call__ = lambda *given, call=call: calls.append(None) or call(*given)  # type: ignore[method-assign]
    try:
        apply_processors(batch, drafted_BN, logits_BTV)
    finally:
        for kind, call in usual.items():
            kind.__call__ = call  # type: ignore[method-assign]
    return len(calls)


def batch_of(sampling: Sampling, rows: int, vocabulary: int, generator: torch.Generator) -> Batch:
    """Return rows of random tokens that are decoded with the same parameters."""
    settings, lengths = GenerationSettings(sampling), np.linspace(100, 500, rows).astype(int)
    tokens_BS = torch.randint(vocabulary, (rows, 600), generator=generator)
    plans = [settings.plan(50, 600, [0], "cpu") for _ in range(rows)]
    sequences = [Sequence(Request(row, [1] * 50, 500, plan=plan), 600) for row, plan in enumerate(plans)]
    lengths_B = torch.from_numpy(lengths)
    return Batch(sequences, tokens_BS, lengths_B, tokens_BS.numpy(), lengths, lengths + 100, lengths_B, prefill=False)


if __name__ == "__main__":
    main()
