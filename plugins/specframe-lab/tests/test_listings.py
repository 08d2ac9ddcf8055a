"""``specframe plugins matrix`` and ``specframe models show``."""

from __future__ import annotations

import json
from pathlib import Path

import architectures
import pytest
from command_line import invoke

from specframe.plugins.registry import registry


def rows(text: str) -> list[list[str]]:
    """Return the cells of a plain table: columns are at least two spaces apart."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


@pytest.mark.quick
def test_matrix() -> None:
    """The matrix says which alignment runs on which KV backend, and marks what it asks for itself."""
    header, *lines = rows(invoke("plugins", "matrix").stdout)
    table = {line[0]: dict(zip(header, line, strict=True)) for line in lines if len(line) == len(header)}
    assert set(table) == set(registry().names("alignment"))
    assert table["ragged"] == {
        "alignment": "ragged",
        "lossless": "yes",
        "scheduler": "continuous",
        "kv dynamic": "no, lacks scatter",
        "kv paged": "yes",
        "kv pool": "yes",
        "kv slab": "default",
    }
    assert (table["exspec"]["kv dynamic"], table["exspec"]["kv slab"]) == ("default", "yes")


@pytest.mark.wide
def test_models_show_layers_that_keep_a_state(tmp_path: Path) -> None:
    """The layers of a hybrid are counted by their types, and what cannot be had with them is named."""
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_next", "layer_types": kinds}))
    shown = invoke("models", "show", str(tmp_path)).stdout
    assert "3 linear_attention, 1 full_attention" in shown
    assert "not offered" in shown
    (tmp_path / "config.json").write_text(json.dumps({"layer_types": ["full_attention", "sliding_attention"]}))
    shown = invoke("models", "show", str(tmp_path)).stdout
    assert "1 full_attention, 1 sliding_attention" in shown
    assert "not offered" not in shown


@pytest.mark.wide
def test_models_show_of_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is not on disk is shown without its shape, with what drafts for it; an unknown name is refused."""
    monkeypatch.setenv("SPECFRAME_HOME", str(tmp_path / "home"))
    shown = invoke("models", "show", "vicuna-7b").stdout
    assert "lmsys/vicuna-7b-v1.3" in shown
    assert "vicuna-68m" in shown
    refused = invoke("models", "show", "vicuna-7")
    assert refused.exit_code == 2
    assert refused.stderr.endswith("did you mean 'vicuna-7b'?\n")


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gemma3", "yes, as 3 pieces"),
        ("qwen3_5_text", "yes, as 5 pieces"),
        ("bloom", "no: it adds a bias to scores by the slots of keys"),
    ],
)
def test_a_model_is_told_to_be_traced_or_why_not(tmp_path: Path, name: str, told: str) -> None:
    """The configuration is enough."""
    architectures.build(name).config.save_pretrained(tmp_path)
    assert told in " ".join(invoke("models", "show", str(tmp_path), "--trace").stdout.split())
