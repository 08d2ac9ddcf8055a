"""Drafts for a target most of whose layers keep a state, and plain decoding: speed, the time of committing, and bytes of states.

    python benchmarks/hybrid.py [--batches 1,8] [--lengths 2,4] [--rounds 7] [--new 48] [--output FILE.json]

Target and draft model have the shapes of Qwen3.5 with 100 and 6 million weights, which are random. Acceptance is drawn, 0.7 at each
place. Contenders decode the same prompts in turn, round after round. Figures are ratios of tokens per second of processor time (one
thread), the medians over rounds, and the share of that time in which states take in the accepted tokens. *Expected* is the ratio
that the forwards' own times give: prompts are read, and a round takes a target forward and a draft forward per draft token.
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
from specframe_std.states.row_states import RowStates
from specframe_testing import harness
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3_5TextConfig

from specframe import Pipeline

VOCABULARY = 8192
ACCEPTANCE = 0.7
PROMPT = 40


def hybrid(hidden: int, layers: int, inner: int, heads: int, seed: int) -> PreTrainedModel:
    """Return a random model in which three of four layers keep a state, as in Qwen3.5."""
    config = Qwen3_5TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=hidden // heads,
        linear_num_key_heads=heads,
        linear_num_value_heads=2 * heads,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        tie_word_embeddings=True,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).eval()


class Settling:
    """The processor time in which states take in tokens."""

    def __init__(self) -> None:
        self.seconds, own = 0.0, RowStates.commit

        def commit(store: RowStates, *given: Any) -> None:
            start = time.process_time()
            own(store, *given)
            self.seconds += time.process_time() - start

        RowStates.commit = commit  # type: ignore[method-assign]


def measured(
    target: PreTrainedModel, draft: PreTrainedModel, batch: int, lengths: list[int], rounds: int, new: int
) -> list[dict[str, Any]]:
    """Return the figures of each draft length; 0 is plain decoding."""
    prompts, settling = harness.random_prompts([PROMPT] * batch, VOCABULARY, seed=3), Settling()
    pipes, times = dict[int, Pipeline](), {length: list[float]() for length in [0, *lengths]}
    for length in times:
        options: dict[str, Any] = {"drafter": "none"} if not length else {"draft_length": length, "seed": 0}
        accept = f"synthetic,rate={ACCEPTANCE}" if length else "greedy"
        given = [draft] if length else []
        pipes[length] = Pipeline(target, *given, accept=accept, batch_size=batch, generation_config="none", **options)
    shares, forwards = dict[int, float](), dict[int, float]()
    for number in range(rounds + 1):
        for length, pipe in pipes.items():
            settling.seconds, start = 0.0, time.process_time()
            tokens = sum(len(one.token_ids) for one in pipe.generate(prompts, new))
            spent = time.process_time() - start
            if number:  # the first warms up
                times[length].append(spent / tokens)
                shares[length] = settling.seconds / spent
                seconds = pipe.report.stage_seconds
                forwards[length] = sum(seconds.get(stage, 0.0) for stage in ("prefill", "verify", "draft"))
    found = []
    for length, pipe in pipes.items():
        report = pipe.report
        ratio = statistics.median(plain / own for plain, own in zip(times[0], times[length], strict=True))
        gained = report.mean_acceptance_length or 1.0
        found.append(
            {
                "batch": batch,
                "draft_length": length,
                "speed": round(ratio, 3),
                "expected": round(forwards[0] / forwards[length], 3),
                "acceptance_length": round(gained, 2),
                "settling_share": round(shares[length], 4),
                "state_bytes": report.state_bytes,
            }
        )
    return found


@click.command(help=__doc__.partition("\n")[0])
@click.option("--batches", default="1,8", show_default=True)
@click.option("--lengths", default="2,4", show_default=True, help="Draft lengths.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--new", default=48, show_default=True, help="New tokens of each prompt.")
@click.option("--output", default=None, help="Write the figures here as JSON.")
def main(batches: str, lengths: str, rounds: int, new: int, output: str | None) -> None:
    """Decode everything in turn, and print a table."""
    torch.set_num_threads(1)
    target, draft = hybrid(768, 12, 2048, 8, 0), hybrid(256, 4, 768, 4, 1)
    figures, table = (
        list[dict[str, Any]](),
        Table("batch", "draft length", "speed", "expected", "length", "settling", "MB"),
    )
    for batch in map(int, batches.split(",")):
        for one in measured(target, draft, batch, [*map(int, lengths.split(","))], rounds, new):
            figures.append(one)
            cells = [one[name] for name in ("batch", "draft_length", "speed", "expected", "acceptance_length")]
            table.add_row(*map(str, cells), f"{one['settling_share']:.1%}", f"{one['state_bytes'] / 1e6:.1f}")
    if output:
        Path(output).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
