"""The script that trains a family of drafts: what it saves, and that a draft saved on the way is one of its own right."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from specframe_tiny import train_family
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM


def small() -> Qwen3ForCausalLM:
    """Return an untrained model, always the same."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=32, tie_word_embeddings=True,
        )
    )  # fmt: skip


def lessons(count: int) -> list[torch.Tensor]:
    """Return lessons of 8 tokens, with two likely tokens each."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(32, (count, 8), generator=generator)
    likely = torch.randint(32, (count, 8, 2), generator=generator).short()
    return [ids, likely, torch.tensor([0.75, 0.25]).expand(count, 8, 2).half()]


def saved(stops: list[int], count: int = 64) -> dict[int, dict[str, torch.Tensor]]:
    """Return the weights of a model at each stop, trained on the first lessons of 64."""
    first = [part[:count] for part in lessons(64)]
    return {seen: draft.state_dict() for seen, draft in train_family.grown(small(), first, stops)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether weights are the same."""
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_draft_saved_on_the_way_is_that_of_a_shorter_run() -> None:
    """A run that ends at a volume gives the weights that a longer run has there; lessons after it are not looked at."""
    stops = [64, 128, 512]
    whole = saved(stops)
    assert [*whole] == stops
    for last in (1, 2):
        assert same(saved(stops[:last])[stops[last - 1]], whole[stops[last - 1]])
    assert same(saved([64], count=8)[64], whole[64])
    assert not same(whole[64], whole[128])
    assert not same(whole[128], whole[512])


@pytest.mark.wide
def test_a_new_draft_has_its_depth_and_the_targets_embeddings() -> None:
    """Each depth is as many layers; what is not in a layer is the same in all."""
    target = AutoModelForCausalLM.from_pretrained(train_family.FOLDER / "target", dtype=torch.float32)
    for layers in (1, 3):
        draft = train_family.new_draft(target, layers)
        assert len(draft.model.layers) == len(draft.config.layer_types) == draft.config.num_hidden_layers == layers
        assert torch.equal(draft.model.embed_tokens.weight, target.model.embed_tokens.weight)
    assert train_family.DRAFT.num_hidden_layers == 2


@pytest.mark.wide
@pytest.mark.parametrize("tokens", ["65535", "16384", "0"])
def test_volumes_that_are_no_power_of_two_are_refused(
    tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Another number of tokens is refused before anything is trained."""
    with pytest.raises(SystemExit):
        train_family.main(["--work", str(tmp_path), "--tokens", tokens])
    assert f"expected a power of two, at least {train_family.SMALLEST}, got {tokens}" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.slow
def test_the_script_writes_drafts_a_table_and_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each depth has a draft for each volume; a second call makes only the depth that is not there."""
    monkeypatch.setattr(train_family, "SMALLEST", 1024)
    monkeypatch.setattr(train_family, "volumes", lambda largest: [1024, 2048])
    train_family.main(["--work", str(tmp_path), "--tokens", "2048", "--depths", "1"])
    weights = tmp_path / "1-layers-2048-tokens" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    train_family.main(["--work", str(tmp_path), "--tokens", "2048", "--depths", "1", "2"])
    assert weights.stat().st_mtime_ns == before
    with (tmp_path / "drafts.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [(row["tokens"], row["layers"]) for row in rows] == [
        ("1024", "1"),
        ("2048", "1"),
        ("1024", "2"),
        ("2048", "2"),
    ]
    for row in rows:
        assert AutoModelForCausalLM.from_pretrained(row["drafter"]).config.num_hidden_layers == int(row["layers"])
    prompts = [json.loads(line)["prompt"] for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert len(prompts) == train_family.SNIPPETS[0]
    assert all(prompts)
