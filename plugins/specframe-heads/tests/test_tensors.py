"""Tensors and configurations of heads' files: all is read, known to be unused, or refused in a sentence."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from edited_heads import edited
from safetensors.torch import load_file
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.formats.recognised import format_of
from specframe_heads.target import Target
from specframe_std.trees import growth
from specframe_testing import harness, zoo
from specframe_testing.heads import block_heads as block_heads
from specframe_testing.heads import checkpoints
from specframe_testing.heads import mtp as mtp_heads
from specframe_testing.heads import stepwise as step_heads

from specframe.errors import CompositionError, ModelError, OptionError, SpecframeWarning


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


@pytest.mark.wide(but=["Medusa of vLLM"])
@pytest.mark.parametrize("name", SAVES)
def test_a_tensor_that_is_not_read_is_refused(name: str, tmp_path: Path) -> None:
    """A file of any format is read whole; one tensor more, as a bias that the configuration does not have, is refused by name."""
    SAVES[name](tmp_path, target())
    checkpoint = Checkpoint.open(str(tmp_path))
    assert format_of(checkpoint).name == name
    head(tmp_path)
    first = min(one for one in checkpoint.names if one.endswith(".weight") and not one.startswith("confidence_head"))
    edited(tmp_path, lambda held: {**held, first.replace(".weight", ".surplus"): torch.ones(2)})
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
    edited(tmp_path, lambda held: {**held, quantised: held[quantised].to(kind)})
    told = f"is quantised: expected floating point numbers of 16 or 32 bits.*got {str(kind)[6:]}"
    with pytest.raises(ModelError, match=told):
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
    edited(tmp_path, **keys)
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
    edited(tmp_path, **keys)
    with pytest.raises(ModelError, match=says):
        head(tmp_path)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["speculators eagle3", "speculators dspark", "z-lab DFlash", "DeepSpec"])
def test_unknown_keys_are_told(name: str, tmp_path: Path) -> None:
    """A key that nobody knows is named in a warning, since it may change what the head computes."""
    SAVES[name](tmp_path, target())
    edited(tmp_path, gated_residual=True, something_else=None)
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
    edited(tmp_path / "modelopt", eagle_config={})
    checkpoint = Checkpoint.open(str(tmp_path / "modelopt"))
    assert format_of(checkpoint).layers(checkpoint, 36) == (2, 18, 33)


def test_a_given_top_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level of a dynamic tree runs as many nodes as asked for, far more than the tree has: the cache has slots for them."""
    target, tops, grow = zoo.build("qwen3"), list[tuple[int, int]](), growth.dynamic
    monkeypatch.setattr(
        growth, "dynamic", lambda budget, top, *rest: tops.append((budget.depth, top)) or grow(budget, top, *rest)
    )
    folder = checkpoints.eagle3(tmp_path, target)
    asked = harness.requests(harness.random_prompts([3, 1, 7], zoo.VOCABULARY), 9)
    drafter = f"eagle,checkpoint={folder},tree=dynamic,nodes=6,top=20"
    harness.check(harness.pipeline(target, drafter, batch_size=3, draft_length=4), asked)
    assert (4, 20) in tops
    assert {top for _, top in tops} == {20}


@pytest.mark.wide
def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A head for another target, a tree for a rule that has none, and a wrong option are one sentence each."""
    head = checkpoints.eagle3(tmp_path, zoo.build("qwen3"))
    asked = harness.requests([[5, 9, 7]], 4)
    told = r"is a head for another target: expected a target with hidden states of size 32, got 36"
    with pytest.raises(ModelError, match=told):
        harness.decode(harness.pipeline(zoo.build("llama"), str(head), draft_length=2), asked)
    said = f"drafter '{head},tree=dynamic' needs 'tree' to be offered, and alignment 'masking' does not offer it, as "
    with pytest.raises(CompositionError, match=f"^{re.escape(said)}"):
        harness.pipeline(zoo.build("qwen3"), f"{head},tree=dynamic", align="masking", draft_length=2)
    with pytest.raises(OptionError, match="shift: expected a whole number from -8 to 8"):
        harness.pipeline(zoo.build("qwen3"), f"{head},shift=9", draft_length=2)
