"""Load options: a quantisation by name reaches ``from_pretrained`` for target and draft model; what is wrong is named."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from command_line import invoke
from specframe_std import load_options
from specframe_std.load_options import config, configs, keywords
from specframe_testing import harness
from transformers import PreTrainedModel
from transformers.quantizers import auto
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from specframe import Pipeline
from specframe.errors import SpecframeError
from specframe.models import loading

NAME = "coarse"
PROMPTS = harness.random_prompts((5, 9), 300, seed=1)


class Coarse(QuantizationConfigMixin):
    """A config of weights that are rounded."""

    def __init__(self, bits: int = 8, modules_to_not_convert: list[str] | None = None, **other: Any) -> None:
        if bits > 8:
            raise ValueError("bits: expected at most 8")
        self.quant_method = NAME  # type: ignore[assignment]
        self.bits, self.modules_to_not_convert = bits, modules_to_not_convert


class CoarseQuantizer(HfQuantizer):
    """Rounds every matrix but embeddings and the head, unless its package is said to be missing."""

    missing = False

    def validate_environment(self, *given: Any, **named: Any) -> None:
        """Refuse, as quantizers do whose package is not installed."""
        if self.missing:
            raise ImportError("coarse needs its package: pip install coarse")

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **named: Any) -> PreTrainedModel:
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "layers" in name:
                step = weight.data.abs().max() / 2 ** (self.quantization_config.bits - 1)
                weight.data = (weight.data / step).round() * step
        return model

    def is_serializable(self, *given: Any) -> bool:
        """Return whether such models can be saved."""
        return False

    is_trainable = False


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quantisation that is registered with transformers."""
    monkeypatch.setitem(auto.AUTO_QUANTIZATION_CONFIG_MAPPING, NAME, Coarse)
    monkeypatch.setitem(auto.AUTO_QUANTIZER_MAPPING, NAME, CoarseQuantizer)
    monkeypatch.setattr(CoarseQuantizer, "missing", False)


@pytest.mark.wide
def test_target_and_draft_model_are_quantised_and_decoded_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are loaded with a config of their own and never moved; output is that of the quantised target alone."""
    monkeypatch.setattr(PreTrainedModel, "to", lambda *_: pytest.fail("a quantised model was moved"))
    pipe = Pipeline("tiny", "tiny-draft", load_options="coarse,bits=3", device="cpu", generation_config=None)
    models = [pipe.target_model, pipe.draft_model]
    found = [one.config.quantization_config for one in models if one is not None]
    assert [one.bits for one in found] == [3, 3]
    assert found[0] is not found[1]
    weight = pipe.target_model.get_parameter("model.layers.0.mlp.up_proj.weight")
    assert len(weight.unique()) <= 9
    decoded = [one.token_ids for one in pipe.generate(PROMPTS, 8)]
    assert decoded == [list(harness.continuation(pipe.target_model, one, 8)) for one in PROMPTS]


FITS: dict[str, list[str]] = {"missing_keys": [], "mismatched_keys": [], "unexpected_keys": []}
"""What transformers tells of weights that fit."""


def test_a_quantised_model_is_made_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are not moved to the device afterwards, also where the checkpoint itself is quantised; others are."""
    seen: list[dict[str, Any]] = []
    moved: list[torch.device] = []
    place = torch.device("cuda:1")

    def from_pretrained(location: str, **options: Any) -> Any:
        seen.append(options)
        return SimpleNamespace(device=place, to=moved.append), FITS

    settings = SimpleNamespace(quantization_config={"quant_method": NAME})
    monkeypatch.setattr(loading, "AutoModelForCausalLM", SimpleNamespace(from_pretrained=from_pretrained))
    loading.load_model("tiny", "target", place, torch.float32, options=keywords(NAME))
    with monkeypatch.context() as patch:
        patch.setattr(loading, "_require_causal", lambda source: settings)
        loading.load_model("tiny", "target", place, torch.float32)
    assert [one["device_map"] for one in seen] == [{"": place}] * 2
    assert not moved
    loading.load_model("tiny", "target", place, torch.float32, options=keywords("none,variant=fp16"))
    assert "device_map" not in seen[2]
    assert seen[2]["variant"] == "fp16"
    assert moved == [place]


def test_options_are_given_to_what_has_them() -> None:
    """Of one text, a quantisation's options go to its config, the others to ``from_pretrained``; a mapping may have the config."""
    found = keywords("coarse,bits=4,attn-implementation=eager,modules-to-not-convert=lm_head")
    made = found.pop("quantization_config")
    assert found == {"attn_implementation": "eager"}
    assert (made.bits, made.modules_to_not_convert) == (4, ["lm_head"])
    again = keywords({"quantization_config": made, "use_safetensors": True})
    assert again["quantization_config"].bits == 4
    assert again["quantization_config"] is not made
    assert keywords({"quantization": "coarse", "bits": 2})["quantization_config"].bits == 2
    assert keywords("bitsandbytes-4bit,bnb-4bit-quant-type=nf4")["quantization_config"].load_in_4bit
    assert keywords(None) == keywords("none") == {}


@pytest.mark.wide
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "course",
            r"^unknown quantisation in load_options 'course': expected one of .*none.*; did you mean 'coarse'\?$",
        ),
        (
            "coarse,bots=4",
            r"^unknown option of the quantisation 'coarse' 'bots': expected one of .*; did you mean 'bits'\?$",
        ),
        ("coarse,bits=9", r"^load_options 'coarse': bits: expected at most 8$"),
        ("coarse,bits=4,bits=5", r"^load_options: option 'bits' of 'coarse' is given twice"),
        ("none,varian=fp16", r"^unknown load option 'varian': expected one of .*; did you mean 'variant'\?$"),
        ("none,device_map=auto", r"^unknown load option 'device_map': expected one of attn_implementation, "),
        ("torchao-int8-weight-only", r"expected the package torchao, which is not installed: pip install torchao$"),
        ("", r"^load_options: expected a name before its options"),
        (8, r"^load_options: expected a quantisation as name,key=value or a mapping, got 8$"),
        ({"quantization": 8}, r"^load_options: expected the name of a quantisation, got 8$"),
        ({"quantization": "coarse", "quantization_config": 1}, r"^load_options: expected .* got both$"),
    ],
)
def test_wrong_load_options_are_told_before_a_model_is_loaded(
    given: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that there are, the package that is missing, an option that nothing takes: each is one sentence."""
    found = load_options.importlib.util.find_spec
    monkeypatch.setattr(
        load_options.importlib.util, "find_spec", lambda name: None if name == "torchao" else found(name)
    )
    monkeypatch.setattr(loading, "load_model", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(SpecframeError, match=told):
        Pipeline("tiny", "none", load_options=given)


@pytest.mark.wide
def test_a_quantizer_whose_package_is_missing_is_told_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers looks for most packages while it loads, and names what to install."""
    monkeypatch.setattr(CoarseQuantizer, "missing", True)
    with pytest.raises(SpecframeError, match=r"^the weights of target 'tiny' .* cannot be read: .*pip install coarse$"):
        Pipeline("tiny", "none", load_options="coarse")


@pytest.mark.wide(but=["run"])
@pytest.mark.parametrize("command", ["run", "verify"])
def test_commands_take_load_options(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model that a command loads has them, those of its references among them."""
    made: list[int] = []
    usual = CoarseQuantizer._process_model_after_weight_loading

    def counted(self: Any, model: Any, **named: Any) -> Any:
        made.append(self.quantization_config.bits)
        return usual(self, model, **named)

    monkeypatch.setattr(CoarseQuantizer, "_process_model_after_weight_loading", counted)
    given = [command, "--target", "tiny", "--drafter", "tiny-draft", "--device", "cpu"]
    given += ["--load-options", "coarse,bits=3"]
    done = invoke(*given, "--max-new-tokens", "4", "Once upon a time")
    assert done.exit_code == 0, done.output
    assert made == [3, 3]


@pytest.mark.wide
def test_torchaos_classes_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of torchao is known by its words, and options go to it or to transformers' config around it."""

    class Base:
        pass

    class Int8WeightOnlyConfig(Base):
        def __init__(self, group_size: int | None = None) -> None:
            self.group_size = group_size

    def torchao_config(quant_type: Any, modules_to_not_convert: list | None = None, **other: Any) -> Any:
        return SimpleNamespace(quant_type=quant_type, left=modules_to_not_convert)

    parts = {"quantization": {"Int8WeightOnlyConfig": Int8WeightOnlyConfig}, "core.config": {"AOBaseConfig": Base}}
    for name, members in parts.items():
        monkeypatch.setitem(sys.modules, f"torchao.{name}", SimpleNamespace(**members))
    found = load_options.importlib.util.find_spec
    monkeypatch.setattr(load_options.importlib.util, "find_spec", lambda name: name == "torchao" or found(name))
    monkeypatch.setattr("transformers.TorchAoConfig", torchao_config)
    assert {name for name in configs() if "torchao" in name} == {"torchao-int8-weight-only"}
    made = config("torchao-int8-weight-only", {"group_size": 32, "modules_to_not_convert": "lm_head"})
    assert (made.quant_type.group_size, made.left) == (32, ["lm_head"])
    with pytest.raises(SpecframeError, match=r"expected one of attn_implementation, .*group_size"):
        config("torchao-int8-weight-only", {"groups": 32})
