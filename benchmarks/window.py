"""Long prompts: a target that drafts with a window of its keys, or without some sublayers, and plain decoding.

    python benchmarks/window.py [--contexts 4096,8192,16384] [--batches 1,4] [--lengths 3] [--recent 512] [--rounds 3] [--new 48]
                                [--device cpu] [--dtype float32] [--output FILE.json]

The target has random weights and as many key heads as query heads, so that keys are most of what a forward reads. What drafts gain
is drawn, 0.8 at each place: cost is measured, and not how well a window drafts, which depends on model and text. Contenders decode
the same prompts in turn, round after round. Figures leave out the reading of prompts: *speed* is the ratio of tokens per second to
plain decoding, the median over rounds; *draft* is the time of a draft's forward over that of a forward that verifies.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from specframe_testing import harness
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specframe import Pipeline

VOCABULARY = 4096
ACCEPTANCE = 0.8
FIGURES = ("context", "batch", "drafter", "draft_length", "speed", "draft_forward", "acceptance_length")


def random_target(context: int, device: str, dtype: str) -> PreTrainedModel:
    """Return a random model of 8 layers for prompts of ``context`` tokens."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval().to(device, getattr(torch, dtype))


def measured(
    target: PreTrainedModel, prompts: list[list[int]], drafters: list[tuple[str, int]], rounds: int, new: int
) -> list[dict[str, Any]]:
    """Return the figures of each drafter and draft length; the first is plain decoding."""
    pipes, rates = list[Pipeline](), [list[float]() for _ in drafters]
    for drafter, length in drafters:
        options: dict[str, Any] = {"draft_length": length, "seed": 0} if length else {}
        accept = f"synthetic,rate={ACCEPTANCE}" if length else "greedy"
        pipes.append(
            Pipeline(
                target, drafter=drafter, accept=accept, batch_size=len(prompts), generation_config="none", **options
            )
        )
    for number in range(rounds + 1):
        for pipe, rate in zip(pipes, rates, strict=True):
            start = time.perf_counter()
            tokens = sum(len(one.token_ids) for one in pipe.generate(prompts, new))
            spent = time.perf_counter() - start - pipe.report.stage_seconds.get("prefill", 0.0)
            if number:  # the first warms up
                rate.append(tokens / spent)
    found = []
    for (drafter, length), pipe, rate in zip(drafters, pipes, rates, strict=True):
        report, seconds = pipe.report, pipe.report.stage_seconds
        verified = seconds["verify"] / max(1, report.rounds)
        drafted = seconds.get("draft", 0.0) / report.draft_forwards if report.draft_forwards else 0.0
        found.append(
            {
                "drafter": drafter,
                "draft_length": length,
                "speed": round(statistics.median(a / b for a, b in zip(rate, rates[0], strict=True)), 3),
                "draft_forward": round(drafted / verified, 3),
                "acceptance_length": round(report.mean_acceptance_length, 2),
                "tokens_per_second": round(statistics.median(rate), 1),
            }
        )
    return found


@click.command(help=__doc__.partition("\n")[0])
@click.option("--contexts", default="4096,8192,16384", show_default=True, help="Tokens of each prompt.")
@click.option("--batches", default="1,4", show_default=True)
@click.option("--lengths", default="3", show_default=True, help="Draft lengths.")
@click.option("--recent", default=512, show_default=True, help="Last tokens that the window shows.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--new", default=48, show_default=True, help="New tokens of each prompt.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", default="float32", show_default=True)
@click.option("--output", default=None, help="Write the figures here as JSON.")
def main(
    contexts: str,
    batches: str,
    lengths: str,
    recent: int,
    rounds: int,
    new: int,
    device: str,
    dtype: str,
    output: str | None,
) -> None:
    """Decode everything in turn, and print a table."""
    tried = [int(one) for one in contexts.split(",")]
    target = random_target(max(tried) + new + 64, device, dtype)
    drafters = [("none", 0)]
    for length in map(int, lengths.split(",")):
        drafters += [(f"window,sink=4,recent={recent}", length), ("layer-skip", length)]
    figures, table = list[dict[str, Any]](), Table(*FIGURES)
    for context in tried:
        for batch in map(int, batches.split(",")):
            prompts = harness.random_prompts([context] * batch, VOCABULARY, seed=3)
            for one in measured(target, prompts, drafters, rounds, new):
                figures.append({"context": context, "batch": batch, **one})
                table.add_row(*(str(figures[-1][name]) for name in FIGURES))
    if output:
        Path(output).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
