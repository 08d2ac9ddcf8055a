"""``specframe models show``: where a model lies, what drafts for it, and its sizes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click
from specframe_std.model_names import known_aliases

from specframe.cli.tables import show_table
from specframe.models.aliases import resolve
from specframe.models.local import CONFIG, on_disk, require_model_folder


@click.command()
@click.argument("name")
@click.option("--trace", "traces", is_flag=True, help="Also say whether its forward can be traced.")
def show(name: str, traces: bool) -> None:
    """Show a model's location, its paired models, and its sizes if it is on disk."""
    location, known = resolve(name), known_aliases()
    require_model_folder(f"model {name!r}", location)
    facts = {"location": location}
    for row in known:
        if row.alias == name:
            facts |= {"state": row.state, "offered by": row.distribution, "drafts for": row.target or ""}
    facts["drafted for by"] = ", ".join(row.alias for row in known if row.target == name)
    facts |= shape(location) | (forward(location) if traces else {})
    rows = [(fact, value) for fact, value in facts.items() if value]
    show_table(("name", name), rows)


def forward(location: str) -> dict[str, str]:
    """Return whether a model's forward can be traced, found without weights, or nothing if its files cannot be read."""
    import torch
    from specframe_std.layers.traced_forward import trace
    from transformers import AutoConfig, AutoModelForCausalLM

    from specframe.errors import SpecframeError
    from specframe.model.runner import ModelRunner

    try:
        config = AutoConfig.from_pretrained(on_disk(location) or location)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception:  # whatever transformers raises
        return {}
    try:
        return {"traced": f"yes, as {len(trace(ModelRunner(model, 'target')).pieces)} pieces"}
    except SpecframeError as error:
        return {"traced": f"no: {error}"}


LAYER_TYPES = ("layer_types", "layers_block_type")
"""Names of the list of the layers' types in a model's configuration."""

ATTENDING = {"full_attention", "sliding_attention", "chunked_attention"}
"""The types of layers whose keys and values are all that they keep of a row's tokens."""

FIGURES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden size": ("hidden_size", "n_embd", "d_model"),
    "vocabulary": ("vocab_size",),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"),
}
"""Sizes in a model's configuration, each with its names in different architectures."""


def shape(location: str) -> dict[str, str]:
    """Return a model's sizes from its config.json; empty if the file is missing or cannot be read."""
    try:
        config = json.loads(((on_disk(location) or Path(location)) / CONFIG[0]).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    text = config | next(
        (part for key in ("text_config", "llm_config") if isinstance(part := config.get(key), dict)), {}
    )
    known = {name: next((text[key] for key in keys if key in text), None) for name, keys in FIGURES.items()}
    architectures = config.get("architectures")
    named = ", ".join(map(str, architectures)) if isinstance(architectures, list) else ""
    figures = {name: f"{value:,}" for name, value in known.items() if isinstance(value, int)}
    return {"architecture": named} | figures | layer_kinds(text)


def layer_kinds(config: dict[str, Any]) -> dict[str, str]:
    """Return how many layers of each type a configuration names, and what cannot be had where some keep a state."""
    kinds = next((found for key in LAYER_TYPES if isinstance(found := config.get(key), list)), [])
    counts = Counter(map(str, kinds))
    if len(counts) < 2 and not {*counts} - ATTENDING:
        return {}
    told = {"layer types": ", ".join(f"{count} {kind}" for kind, count in counts.items())}
    if {*counts} - ATTENDING:
        told["not offered"] = "trees of a draft model, layer-skip of layers that only keep a state"
    return told
