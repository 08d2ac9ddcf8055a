"""What heads' drafts cost at published shapes: chains and trees of random heads on a grown target, at every batch size.

    python benchmarks/heads.py [--pair qwen3-8b] [--device cuda] [--dtype bfloat16]
        [--batches 1,8,64] [--draft-length 5]

The heads have the sizes that are published for the target and random weights: their drafts are rejected, so every round has the
same work. A round's time over that of plain decoding is the acceptance length from which on the head pays (*break-even*). Which
length a trained head reaches is not measured here.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch
from grow import PAIRS, load_pair
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

from specframe import Pipeline
from specframe.contracts.drafts import RoundReport
from specframe.models.loading import pick_device, pick_dtype
from specframe.observe.watch import Watcher

DRAFTS = (
    "none", "eagle", "eagle,tree=dynamic,nodes=16", "eagle,tree=static,nodes=16", "peagle", "dflash", "dspark",
)  # fmt: skip
NEW, PROMPT = 24, 96
"""Tokens generated and read per row: enough rounds for a median, at a length at which the cache costs little."""

LAYERS = {"eagle": 1, "peagle": 4, "dflash": 5, "dspark": 5}
"""Layers of the heads that are published for Qwen3-8B."""


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", default="qwen3-8b", show_default=True, type=click.Choice([*PAIRS]))
@click.option("--device", default="auto", show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--batches", default="8,1,64,32", show_default=True, help="The most telling first.")
@click.option("--draft-length", default=5, show_default=True, help="Tokens of a chain, and the depth of a tree.")
@click.option("--budget", default=300.0, show_default=True, help="Seconds; cells not reached are left out.")
@click.option("--output", default=None, help="Write the rows here as JSON.")
def main(
    pair: str, device: str, dtype: str, batches: str, draft_length: int, budget: float, output: str | None
) -> None:
    """Time a round of every draft at every batch size and print a table; exit with 1 when one failed."""
    deadline, on = time.perf_counter() + budget, pick_device(device)
    target = load_pair(pair, on, pick_dtype(dtype, on))[0]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folders = {kind: saved(kind, Path(name) / kind, target) for kind in LAYERS}
        for row in timed(target, folders, [*map(int, batches.split(","))], draft_length, deadline):
            rows.append(row)
            if output:  # after every row: what is known stays known whatever happens next
                Path(output).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    show(rows, f"heads for {pair}, {target.dtype}, {on}, depth {draft_length}")
    sys.exit(any(row["fault"] for row in rows))


def timed(
    target: Any, folders: dict[str, str], batches: list[int], depth: int, deadline: float
) -> Iterator[dict[str, Any]]:
    """Yield a row per batch size and draft; the first draft of each is none."""
    for batch in batches:
        plain = None
        for draft in DRAFTS:
            if time.perf_counter() > deadline:
                return
            row: dict[str, Any] = {"batch": batch, "draft": draft, "fault": None}
            kind, _, options = draft.partition(",")
            drafter = ",".join(filter(None, [kind, f"checkpoint={folders[kind]}" if kind in folders else "", options]))
            try:
                spent = round_milliseconds(target, drafter, batch, depth)
            except Exception as fault:  # whatever a device or a strategy raises; the others go on
                yield row | {"fault": f"{type(fault).__name__}: {fault}".partition("\n")[0][:200]}
                continue
            plain = spent if draft == "none" else plain
            yield row | {"round_ms": spent, "break_even": plain and spent / plain}


class Rounds(Watcher):
    """The time of every decoding round of the whole batch."""

    def __init__(self, batch: int, device: torch.device) -> None:
        self._batch, self._device, self._last = batch, device, 0.0
        self.seconds: list[float] = []

    def round(self, report: RoundReport) -> None:
        """Note the time since the last round."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if not report.prefill and len(report.sequences) == self._batch:
            self.seconds.append(now - self._last)
        self._last = now


def round_milliseconds(target: Any, drafter: str, batch: int, depth: int) -> float:
    """Return the median time of a round, those left out in which shapes are first met."""
    watch = Rounds(batch, target.device)
    pipe = Pipeline(
        target, drafter=drafter, draft_length=depth, batch_size=batch, observers=[watch], generation_config=None
    )
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(1, 2000, (batch, PROMPT), generator=generator).tolist()
    list(pipe.generate(prompts, NEW))
    return 1e3 * statistics.median(watch.seconds[4:] or watch.seconds)


def saved(kind: str, folder: Path, target: Any) -> str:
    """Save a random head of the sizes published for a target, in the format of ``speculators``; return its folder."""
    own, folder_of = target.config, folder
    layers, size = LAYERS[kind], own.hidden_size
    config = {
        "model_type": "qwen3", "hidden_size": size, "intermediate_size": own.intermediate_size, "num_hidden_layers": layers,
        "num_attention_heads": own.num_attention_heads, "num_key_value_heads": own.num_key_value_heads, "head_dim": own.head_dim,
        "vocab_size": own.vocab_size, "rms_norm_eps": own.rms_norm_eps, "max_position_embeddings": own.max_position_embeddings,
        "layer_types": ["full_attention"] * layers, "attention_bias": False,
    }  # fmt: skip
    last, drafted = own.num_hidden_layers - 3, min(32000, own.vocab_size)
    three, five = [2, own.num_hidden_layers // 2, last], [2 + round(step * (last - 2) / 4) for step in range(5)]
    given: dict[str, Any] = {"speculators_model_type": kind, "transformer_layer_config": config}
    if kind in ("eagle", "peagle"):
        given |= {
            "speculators_model_type": {"eagle": "eagle3"}.get(kind, kind),
            "eagle_aux_hidden_state_layer_ids": three,
        }
        given |= {"draft_vocab_size": drafted, "mask_token_id": 7}
    else:
        given |= {"aux_hidden_state_layer_ids": five, "block_size": 16, "mask_token_id": 7, "markov_rank": 256}
    folder_of.mkdir()
    (folder_of / "config.json").write_text(json.dumps(given), encoding="utf-8")
    shapes = shapes_of(kind, config, len(given.get("aux_hidden_state_layer_ids", three)) * size, drafted)
    tensors = {name: random(name, shape, target) for name, shape in shapes.items()}
    if kind in ("eagle", "peagle") and drafted < own.vocab_size:
        tensors["d2t"] = torch.zeros(drafted, dtype=torch.long)
    save_file(tensors, folder_of / "model.safetensors")
    return str(folder_of)


def random(name: str, shape: tuple[int, ...], target: Any) -> torch.Tensor:
    """Return a random tensor, made on the target's device; that of a norm is of ones."""
    if "norm" in name:
        return torch.ones(shape, dtype=target.dtype)
    return (0.02 * torch.randn(shape, device=target.device)).to("cpu", target.dtype)


def shapes_of(kind: str, config: dict[str, Any], features: int, drafted: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a head's tensors by name."""
    size, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    pairs = kind in ("eagle", "peagle")
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (size, features), "norm.weight": (size,)}
    for layer in range(config["num_hidden_layers"]):
        at, width = f"layers.{layer}.", 2 * size if pairs and layer == 0 else size
        for name in ("q", "k", "v"):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (queries if name == "q" else keys, width)
        shapes |= {f"{at}self_attn.{name}_norm.weight": (head,) for name in ("q", "k")}
        shapes[f"{at}self_attn.o_proj.weight"] = (size, queries)
        shapes |= {f"{at}mlp.{name}_proj.weight": (inner, size) for name in ("gate", "up")}
        shapes[f"{at}mlp.down_proj.weight"] = (size, inner)
        shapes |= {f"{at}{name}_layernorm.weight": (size,) for name in ("input", "post_attention")}
    if pairs:
        shapes |= {"layers.0.hidden_norm.weight": (size,), "lm_head.weight": (drafted, size)}
    else:
        shapes["hidden_norm.weight"] = (size,)
    if kind == "peagle":
        shapes["mask_hidden"] = (1, 1, features)
    if kind == "dspark":
        shapes |= {"markov_head.markov_w1.weight": (config["vocab_size"], 256)}
        shapes |= {"markov_head.markov_w2.weight": (config["vocab_size"], 256)}
        shapes |= {"confidence_head.proj.weight": (1, size + 256), "confidence_head.proj.bias": (1,)}
    return shapes


def show(rows: list[dict[str, Any]], title: str) -> None:
    """Print a line per batch size and draft."""
    table = Table("batch", "draft", "round, ms", "break-even", title=title)
    for row in rows:
        times = [row["fault"], ""] if row["fault"] else [f"{row['round_ms']:.2f}", f"{row['break_even'] or 0:.2f}"]
        table.add_row(str(row["batch"]), row["draft"], *times)
    Console(width=132).print(table)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
