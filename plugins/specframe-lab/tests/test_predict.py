"""Predicted speeds: what a forward reads and computes, profiles, acceptance from files, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from command_line import invoke
from specframe_heads import checkpoint
from specframe_heads.eagle.eagle_drafter import Eagle
from specframe_lab.prediction import profiles
from specframe_lab.prediction.counted_drafts import CountedDrafts
from specframe_lab.prediction.counted_products import Products
from specframe_lab.prediction.forward_times import FreeDrafts
from specframe_lab.prediction.model_costs import ModelCosts, costs_of
from specframe_lab.prediction.pair import read_pair
from specframe_lab.prediction.predict import acceptance_rate, expected_length, read_acceptance, round_seconds
from specframe_lab.prediction.profiles import PROFILES, DeviceProfile, read_profile, write_profile
from specframe_testing import zoo
from specframe_testing.heads import block_heads, checkpoints, stepwise

from specframe.errors import OptionError
from specframe.models import loading
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry

COSTS = ModelCosts(
    layers=2, vocabulary=10, weights=1000, expert_weights=0, expert_share=1, cached=8, attention=16, itemsize=2
)
DRAFT = attrs.evolve(COSTS, layers=1, weights=100)
SLOW = DeviceProfile(flops=1e4, bandwidth=1e3, layer_overhead=0.5)


def test_a_forward_reads_weights_once_and_a_cache_by_row() -> None:
    """Bytes and operations are those of the formula, written out."""
    load = COSTS.forward(rows=3, tokens=2, context=5)
    assert load.bytes == 2 * (1000 + 3 * 7 * 8 + 6 * 10)
    assert load.operations == 6 * (2 * 1000 + 16 * 7)
    assert (load.tokens, load.weights, load.weight_bytes, load.layers) == (6, 1000, 2000, 2)


@pytest.mark.wide(but=["qwen3-moe"])
@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2", "qwen3-moe"])
def test_costs_are_those_of_the_model(name: str) -> None:
    """Weights and cached numbers, found without any memory, are those of the model that is made with it."""
    model: Any = zoo.build(name)
    costs = costs_of(model.config)
    weights = sum(weight.numel() for weight in model.parameters())
    if model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
        weights -= model.get_input_embeddings().weight.numel()
    assert costs.weights + costs.expert_weights == weights
    assert costs.expert_share == (0.5 if name == "qwen3-moe" else 1)
    assert (costs.expert_weights > 0) == (name == "qwen3-moe")
    cache = model(torch.tensor([[1, 2, 3]])).past_key_values
    assert costs.cached * 3 == sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert costs.itemsize == 2
    assert costs_of(model.config, torch.float32).itemsize == 4
    assert costs_of(type(model.config)(**model.config.to_dict() | {"dtype": "float32"})).itemsize == 4


def test_a_forward_takes_its_reads_or_its_operations() -> None:
    """The longer of both counts, and every layer's overhead is added."""
    few, many = COSTS.forward(1, 1, 0), COSTS.forward(100, 1, 0)
    assert SLOW.seconds(few) == pytest.approx(few.bytes / 1e3 + 1)
    assert SLOW.seconds(many) == pytest.approx(many.operations / 1e4 + 1)
    measured = attrs.evolve(SLOW, products=((1, 0.01), (3, 0.05), (4, 0.06)))
    others = (few.bytes - few.weight_bytes) / 1e3
    assert measured.seconds(few) == pytest.approx(1000 * 0.01 + others + 1)
    two, eight = COSTS.forward(2, 1, 0), COSTS.forward(8, 1, 0)
    assert measured.seconds(two) == pytest.approx(1000 * 0.03 + (two.bytes - two.weight_bytes) / 1e3 + 1)
    assert measured.seconds(eight) == pytest.approx(1000 * 0.12 + (eight.bytes - eight.weight_bytes) / 1e3 + 1)


def test_a_round_is_a_target_forward_and_one_of_the_draft_model_a_token() -> None:
    """The target is fed the draft and a token, the draft model two tokens first; without one, drafts cost nothing."""
    wanted = SLOW.seconds(COSTS.forward(2, 4, 9))
    assert round_seconds(COSTS, FreeDrafts().drafting(2, 3, 9), SLOW, 2, 9) == wanted
    wanted += SLOW.seconds(DRAFT.forward(2, 2, 9)) + 2 * SLOW.seconds(DRAFT.forward(2, 1, 9))
    assert round_seconds(COSTS, DRAFT.drafting(2, 3, 9), SLOW, 2, 9) == pytest.approx(wanted)


@pytest.mark.wide
def test_acceptance_is_a_number_or_what_a_file_shows(tmp_path: Path) -> None:
    """Rounds, drafted and accepted tokens of all runs of a file give the chance by which as many tokens are gained."""
    assert read_acceptance("0.25") == 0.25
    assert expected_length(1.0, 3) == 4
    assert acceptance_rate(3, expected_length(0.6, 3)) == pytest.approx(0.6)
    figures = {"num_spec_steps": 100, "num_draft_tokens": 300, "num_accepted_draft_tokens": 150}
    report, lines = tmp_path / "report.json", tmp_path / "results.jsonl"
    report.write_text(json.dumps({"figures": figures}, indent=1))
    lines.write_text(
        "".join(f"{json.dumps(one)}\n" for one in ({"figures": figures}, {"error": "x"}, {"figures": figures}))
    )
    for file in (report, lines):
        assert expected_length(read_acceptance(str(file)), 3) == pytest.approx(2.5)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"flops": 1, "layer_overhead": 0}', "lacks bandwidth: expected an object with"),
        ('{"flops": 1, "bandwidth": 1, "layer_overhead": 0, "name": "x"}', "has 'name': expected flops, bandwidth"),
        ('{"flops": 1, "bandwidth": 1, "layer_overhead": 0, "products": [1]}', "products: expected a list of pairs"),
    ],
)
def test_another_profile_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    """A file that lacks a value, or has another, is named with what is expected."""
    (file := tmp_path / "profile.json").write_text(text)
    with pytest.raises(OptionError, match=rf"^--device-profile: .*{sentence}"):
        read_profile(str(file))


@pytest.mark.wide
def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A measured profile is the same when it is read again; a name that is no file is refused with those there are."""
    profile = attrs.evolve(SLOW, products=((1, 0.5), (2, 0.75)))
    (file := tmp_path / "profile.json").write_text(write_profile(profile))
    assert read_profile(str(file)) == profile
    assert read_profile("H100") == PROFILES["h100"]
    with pytest.raises(OptionError, match="expected h100, h200, a100, b200 or a file, got 'h1000'"):
        read_profile("h1000")


def invoked(*arguments: str) -> Any:
    return invoke("predict", *arguments)


@pytest.mark.quick
def test_the_command_prints_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for plain decoding and each draft length, at each batch size; no weights are loaded."""
    monkeypatch.setattr(loading, "load_model", lambda *_: pytest.fail("a model was loaded"))
    pair = ("--target", "tiny", "--drafter", "tiny-draft", "--batch-size", "1,8", "--draft-length", "3")
    found = invoked(*pair, "--acceptance", "0.7", "--json")
    assert found.exit_code == 0, found.output
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [(line["batch_size"], line["draft_length"]) for line in lines] == [(1, 0), (1, 3), (8, 0), (8, 3)]
    assert lines[1]["acceptance_length"] == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    assert {line["device_profile"] for line in lines} == {"h100"}
    table = invoked(*pair)
    assert len(table.stdout.splitlines()) == 5
    assert table.stderr.startswith("device profile: h100, its maker's figures and not this machine's; ")
    assert "every draft token is taken to be accepted" in table.stderr
    zoo.build("qwen3").save_pretrained(tmp_path)
    plain = invoked("--target", "tiny", "--drafter", "none", "--json")
    assert {json.loads(line)["draft_length"] for line in plain.stdout.splitlines()} == {0}
    other = invoked("--target", str(tmp_path), "--drafter", "model")
    assert other.exit_code != 0
    assert "--drafter: expected a draft model, got 'model', for which none is known" in other.output


@pytest.mark.quick
def test_the_command_writes_what_it_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A measured profile holds positive numbers, and predicts; a layer's own time is what products leave, on a busy CPU nothing."""
    for name, value in {"SMALLEST": 16, "LARGEST": 16, "SIDE": 16, "MATRIX_BYTES": 1 << 14, "ROUNDS": 2}.items():
        monkeypatch.setattr(profiles, name, value)
    file = str(tmp_path / "profile.json")
    assert invoked("--measure", file, "--device", "cpu").exit_code == 0
    profile = read_profile(file)
    assert [rows for rows, _ in profile.products] == [*profiles.ROWS]
    assert min(profile.flops, profile.bandwidth) > 0
    assert profile.layer_overhead >= 0
    assert invoked("--target", "tiny", "--drafter", "tiny-draft", "--device-profile", file).exit_code == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, and a head of each kind for it."""
    made = tmp_path_factory.mktemp("heads")
    zoo.save_pair(made)
    target = zoo.build("qwen3")
    target.save_pretrained(made / "model")
    checkpoints.eagle3(made / "eagle3", target, drafted=70)
    stepwise.overfitted(made / "medusa", "medusa", target, [[1, 2]], tokens=4, steps=1)
    block_heads.speculators(made / "dflash", target, drafted=70)
    return made


def matrices(folder: Path) -> dict[str, int]:
    """Return the numbers of each matrix of a head, without the embedding, of which rows are looked up."""
    tensors = checkpoint.Checkpoint.open(str(folder)).load()
    return {name: one.numel() for name, one in tensors.items() if one.ndim == 2 and "embed" not in name}


def of(weights: dict[str, int], *parts: str) -> int:
    """Return the numbers of matrices with one of these parts in their names."""
    return sum(count for name, count in weights.items() if any(part in name for part in parts))


def eagle3(weights: dict[str, int], length: int) -> tuple[int, int]:
    """Return the weights that EAGLE-3 reads in a round: features are fused once, the layer and the head are run once a token."""
    return of(weights, "fc.") + length * of(weights, "layers.", "lm_head"), length


def medusa(weights: dict[str, int], length: int) -> tuple[int, int]:
    """Return those of Medusa: each of its three heads once, if the draft is so long."""
    places = min(length, 3)
    return sum(of(weights, f"{place}.0.linear", f"{place}.1.weight") for place in range(places)), places


def dflash(weights: dict[str, int], length: int) -> tuple[int, int]:
    """Return those of DFlash: all of it once, however long the draft, and keys and values of the context once more."""
    return of(weights, "fc.", "layers.", "lm_head") + of(weights, "k_proj", "v_proj"), min(length, 5)


@pytest.mark.wide(but=["medusa"])
@pytest.mark.parametrize("wanted", [eagle3, medusa, dflash])
def test_a_head_reads_its_weights_once_a_pass(folder: Path, wanted: Callable[..., Any]) -> None:
    """Weights are those of the products in a round, to the number; rows share them, and each has its operations and its cache."""
    drafts = read_pair(str(folder / "model"), f"{folder / wanted.__name__},tree=chain", "float32").drafts
    assert isinstance(drafts, CountedDrafts)
    for length in (1, 4, 7):
        one, four = (drafts.drafting(rows, length, 24) for rows in (1, 4))
        assert (sum(load.weights for load in one.loads), one.depth) == wanted(
            matrices(folder / wanted.__name__), length
        )
        assert one.nodes == one.depth
        for alone, together in zip(one.loads, four.loads, strict=True):
            assert (together.weights, together.tokens) == (alone.weights, 4 * alone.tokens)
            assert together.weight_bytes == alone.weight_bytes == 4 * alone.weights
            assert together.operations == 4 * alone.operations >= 8 * alone.weights
            assert together.bytes - together.weight_bytes == 4 * (alone.bytes - alone.weight_bytes)


def test_a_tree_is_fed_to_the_target_whole(folder: Path) -> None:
    """A row gains no more than the depth, and the target is fed all nodes."""
    drafts = CountedDrafts(recipe(folder / "model", f"{folder / 'eagle3'},tree=dynamic,nodes=9,top=3"), torch.float32)
    found = drafts.drafting(1, 3, 20)
    assert (found.depth, found.nodes) == (3, 9)


@pytest.mark.wide
def test_experts_are_read_as_tokens_take_them() -> None:
    """Each state computes with the expert that it takes; many states read nearly all of them."""
    with Products() as counted, torch.inference_mode():
        states, experts = torch.ones(2, 16, dtype=torch.bfloat16), torch.ones(4, 16, 8, dtype=torch.bfloat16)
        torch._grouped_mm(states.to("meta"), experts.to("meta"), torch.ones(4, dtype=torch.int32, device="meta"))
    (few,), (many,) = counted.loads(1), counted.loads(50)
    assert few.operations == 2 * 2 * 16 * 8
    assert few.weights == pytest.approx((1 - 0.75**2) * experts.numel())
    assert many.weights == pytest.approx(experts.numel(), rel=1e-6)
    assert many.weight_bytes == 2 * many.weights


def recipe(target: Any, drafter: Any) -> Recipe:
    """Return the options of a run."""
    return Recipe(str(target), str(drafter)).checked().named(registry())


@pytest.mark.wide
def test_a_drafter_that_looks_at_numbers_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says why."""
    monkeypatch.setattr(Eagle, "draft", lambda self, batch, *_: batch.tokens_BS.max().item())
    found = invoked("--target", str(folder / "model"), "--drafter", str(folder / "eagle3"), "--context", "20")
    assert found.exit_code != 0
    assert "--drafter: expected one that drafts for this target without looking at numbers, got '" in found.stderr
