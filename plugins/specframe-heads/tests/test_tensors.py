"""Tensors and configurations of heads' files: all is read, known to be unused, or refused in a sentence."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.formats.recognised import format_of
from specframe_heads.target import Target
from specframe_testing import zoo
from specframe_testing.heads import block_heads as block_heads
from specframe_testing.heads import checkpoints
from specframe_testing.heads import mtp as mtp_heads
from specframe_testing.heads import stepwise as step_heads

from specframe.errors import ModelError, SpecframeWarning


def stepwise(kind: str, folder: Path, target: Any) -> None:
    """Save an untrained head that predicts one place after the other."""
    step_heads.write(folder, kind, step_heads.new(kind, Target(target)), Target(target))


SAVES = {
    "speculators eagle3": functools.partial(checkpoints.eagle3, drafted=40),
    "speculators eagle": checkpoints.eagle1_speculators,
    "EAGLE-3": functools.partial(checkpoints.eagle3_authors, drafted=40, pickled=False),
    "ModelOpt EAGLE-3": functools.partial(checkpoints.eagle3_modelopt, drafted=40),
    "EAGLE-1 and 2": checkpoints.eagle1,
    "speculators peagle": functools.partial(block_heads.peagle, drafted=40),
    "speculators dspark": functools.partial(block_heads.speculators, kind="dspark", drafted=40),
    "speculators dflash": block_heads.speculators,
    "z-lab DFlash": block_heads.z_lab,
    "DeepSpec": block_heads.deepspec,
    "speculators mtp": mtp_heads.save_file_of,
    "Medusa": functools.partial(stepwise, "medusa"),
    "Medusa of vLLM": functools.partial(stepwise, "medusa of vLLM"),
    "Hydra": functools.partial(stepwise, "hydra++"),
    "Clover-2": functools.partial(stepwise, "clover2"),
    "Clover": functools.partial(stepwise, "clover"),
}


@functools.cache
def target() -> Any:
    """Return a small target of the family that heads of all formats here are for."""
    return zoo.build("qwen3")


def head(folder: Path) -> Any:
    """Return the head in a folder."""
    checkpoint = Checkpoint.open(str(folder))
    return format_of(checkpoint).made(checkpoint, Target(target()))


def with_tensors(folder: Path, **more: torch.Tensor) -> None:
    """Put tensors into a file, in place of those with the same names."""
    path = folder / "model.safetensors"
    save_file(load_file(path) | {name.replace("__", "."): one for name, one in more.items()}, path)


def with_keys(folder: Path, **more: Any) -> None:
    """Put keys into a configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))


@pytest.mark.wide(but=["Medusa of vLLM"])
@pytest.mark.parametrize("name", SAVES)
def test_a_tensor_that_is_not_read_is_refused(name: str, tmp_path: Path) -> None:
    """A file of any format is read whole; one tensor more, as a bias that the configuration does not have, is refused by name."""
    SAVES[name](tmp_path, target())
    checkpoint = Checkpoint.open(str(tmp_path))
    assert format_of(checkpoint).name == name
    head(tmp_path)
    first = min(one for one in checkpoint.names if one.endswith(".weight") and not one.startswith("confidence_head"))
    with_tensors(tmp_path, **{first.replace(".weight", ".surplus"): torch.ones(2)})
    with pytest.raises(ModelError, match=r"the tensor '[\w.]+\.surplus'"):
        head(tmp_path)


@pytest.mark.wide(but=["speculators mtp-kind0"])
@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("name", ["speculators eagle3", "speculators dflash", "Medusa", "speculators mtp"])
def test_quantised_weights_are_refused(name: str, kind: torch.dtype, tmp_path: Path) -> None:
    """Weights of 8 bits mean nothing without their scales: they are refused, and not taken for what they are not."""
    SAVES[name](tmp_path, target())
    tensors = load_file(tmp_path / "model.safetensors")
    quantised = next(one for one in sorted(tensors) if tensors[one].ndim == 2)
    with_tensors(tmp_path, **{quantised: tensors[quantised].to(kind)})
    with pytest.raises(
        ModelError, match=f"is quantised: expected floating point numbers of 16 or 32 bits.*got {str(kind)[6:]}"
    ):
        head(tmp_path)


@pytest.mark.wide(but=["speculators eagle3-keys1"])
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("speculators eagle3", {"eagle_aux_hidden_state_layer_ids": ["0", "1", "2"]}),
        ("speculators eagle3", {"eagle_aux_hidden_state_layer_ids": "0,1,2"}),
        ("EAGLE-3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["0", "1", "2"]}}),
        ("speculators dflash", {"aux_hidden_state_layer_ids": 1}),
        ("z-lab DFlash", {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [True, 1.0]}}),
        ("DeepSpec", {"target_layer_ids": ["-1", "1"]}),
    ],
)
def test_layer_ids_are_whole_numbers(name: str, keys: dict[str, Any], tmp_path: Path) -> None:
    """Layer ids given as text, as a single number or as something else are refused in a sentence."""
    SAVES[name](tmp_path, target())
    with_keys(tmp_path, **keys)
    with pytest.raises(ModelError, match=r"expected a list of whole numbers for .*layer_ids, got "):
        head(tmp_path)


@pytest.mark.wide(but=["ModelOpt EAGLE-3-keys1-False for eagle_config\\\\.use_mtp_layernorm"])
@pytest.mark.parametrize(
    ("name", "keys", "says"),
    [
        (
            "z-lab DFlash",
            {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 1], "attention_sink_bias": True}},
            r"expected False for dflash_config\.attention_sink_bias, got True",
        ),
        (
            "ModelOpt EAGLE-3",
            {"eagle_config": {"use_mtp_layernorm": True}},
            r"False for eagle_config\.use_mtp_layernorm",
        ),
        ("ModelOpt EAGLE-3", {"eagle_config": {"parallel_draft_step": 4}}, r"eagle_config\.parallel_draft_step, got 4"),
    ],
)
def test_keys_of_other_networks_are_refused(name: str, keys: dict[str, Any], says: str, tmp_path: Path) -> None:
    """A key with a value that makes the head compute what is not implemented is refused."""
    SAVES[name](tmp_path, target())
    with_keys(tmp_path, **keys)
    with pytest.raises(ModelError, match=says):
        head(tmp_path)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["speculators eagle3", "speculators dspark", "z-lab DFlash", "DeepSpec"])
def test_unknown_keys_are_told(name: str, tmp_path: Path) -> None:
    """A key that nobody knows is named in a warning, since it may change what the head computes."""
    SAVES[name](tmp_path, target())
    with_keys(tmp_path, gated_residual=True, something_else=None)
    with pytest.warns(SpecframeWarning, match=r"has gated_residual, not known here"):
        head(tmp_path)


def drafted(folder: Path) -> torch.Tensor:
    """Return the logits of a head with a transformer after a few pairs."""
    made = head(folder)
    ids, states = torch.arange(6)[None] % 5, torch.arange(6 * made.backbone.feature_size).view(1, 6, -1).sin()
    with torch.inference_mode():
        return made.logits(made.backbone(ids, features=states).logits)


@pytest.mark.wide(but=["eagle1-keys0"])
@pytest.mark.parametrize(
    "keys",
    [
        {"model_type": "mixtral", "sliding_window": 2, "num_local_experts": 8},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 2},
        {"model_type": "qwen3", "head_dim": 128},
        {"model_type": None},
        {"num_hidden_layers": 36},
        {"num_key_value_heads": 1, "attention_bias": True},
    ],
)
@pytest.mark.parametrize("save", [checkpoints.eagle1, functools.partial(checkpoints.eagle3_authors, pickled=False)])
def test_layers_are_llamas_whatever_model_a_configuration_was_copied_from(
    save: Any, keys: dict[str, Any], tmp_path: Path
) -> None:
    """The authors' code makes layers of Llama from configurations that name another model, or its number of layers."""
    save(tmp_path / "usual", target())
    save(tmp_path / "copied", target(), **keys)
    assert torch.equal(drafted(tmp_path / "usual"), drafted(tmp_path / "copied"))


def test_files_of_modelopt_are_the_authors_heads(tmp_path: Path) -> None:
    """An EAGLE-3 head that ModelOpt exported is the authors' network under other names; its ids count layers from 0."""
    checkpoints.eagle3_modelopt(tmp_path / "modelopt", target())
    checkpoints.eagle3_authors(tmp_path / "authors", target(), pickled=False)
    assert torch.equal(drafted(tmp_path / "modelopt"), drafted(tmp_path / "authors"))
    checkpoint = Checkpoint.open(str(tmp_path / "modelopt"))
    assert format_of(checkpoint).layers(checkpoint, 2) == (1, 2, 2)
    with_keys(tmp_path / "modelopt", eagle_config={})
    checkpoint = Checkpoint.open(str(tmp_path / "modelopt"))
    assert format_of(checkpoint).layers(checkpoint, 36) == (2, 18, 33)
