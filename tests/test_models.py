"""Aliases, loading of models and tokenizers, and what fits what, on small models of the real classes."""

from __future__ import annotations

import functools
import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import architectures
import huggingface_hub.constants
import pytest
import torch
import transformers
from command_line import invoke
from safetensors.torch import load_file, save_file
from specframe_std import model_names
from specframe_testing import harness, zoo
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    BartConfig,
    BertConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
)

from specframe import assisted
from specframe.errors import ModelError, OptionError, SpecframeWarning, UnknownNameError
from specframe.model.runner import ModelRunner
from specframe.models import aliases, hub
from specframe.models import loading as models
from specframe.models.pairs import choose
from specframe.models.vocabulary import VOCABULARY_SLACK, check_vocabularies, share_vocabulary
from specframe.plugins.entries import Entry, ModelAlias
from specframe.plugins.registry import Registry, registry

CPU = torch.device("cpu")
SIZES = {"vocab_size": 300, "eos_token_id": 256, "pad_token_id": 257}
ASK_HUB = hub.fault
ALPHABET = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def tokenizer_of(vocabulary: dict[str, int], *extra: str) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer without merges; ``extra`` are special tokens after the end and padding ones."""
    backend = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>")
    tokenizer.add_tokens(list(extra), special_tokens=True)
    return tokenizer


def save(family: str, folder: Path) -> PreTrainedModel:
    """Save a randomly initialised model and its tokenizer; return the model."""
    model = zoo.build(family, **SIZES)
    model.save_pretrained(folder)
    tokenizer_of(ALPHABET).save_pretrained(folder)
    return model


def copy_to_hub_cache(folder: Path, cache: Path, repository: str) -> None:
    """Lay a saved model out as the hub's cache does."""
    root = cache / f"models--{repository.replace('/', '--')}"
    shutil.copytree(folder, root / "snapshots" / ("0" * 40))
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0" * 40)


def sized(size: int) -> SimpleNamespace:
    """Stand in for a model of which only the size of its vocabulary is asked."""
    return SimpleNamespace(config=LlamaConfig(vocab_size=size))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model that tests only read."""
    folder = tmp_path_factory.mktemp("saved") / "llama"
    save("llama", folder)
    return folder


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    """A saved model that a test may break."""
    return Path(shutil.copytree(llama, tmp_path / "copy"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No network, an empty hub cache, an empty user's folder and two plugins' aliases."""
    offered = {
        "big": [ModelAlias("big", "org/big", None, "some-models")],
        "small": [ModelAlias("small", "org/small", "big", "some-models")],
    }
    drafters = {"drafter": {"none": [Entry("drafter", "none", object, "some-drafters")]}}
    for module in (aliases, model_names):
        monkeypatch.setattr(module, "registry", lambda: Registry(entries=drafters, models=offered))
    monkeypatch.setattr(hub, "fault", lambda *_: ConnectionError("Name or service not known"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SPECFRAME_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def load_fault(location: str | Path, role: str = "target") -> str:
    """Return the message that loading fails with, which is one line."""
    with pytest.raises(ModelError) as caught:
        models.load_model(str(location), role, CPU, torch.float32)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.wide
@pytest.mark.parametrize("family", ["llama", "qwen3", "glm4"])
def test_a_saved_model_is_loaded_back_unchanged(family: str, tmp_path: Path) -> None:
    """A directory gives the same class, in eval mode, with the same logits and next tokens."""
    saved = save(family, tmp_path / family)
    loaded = models.load_model(str(tmp_path / family), "target", CPU, torch.float32)
    ids = torch.tensor(models.load_tokenizer(str(tmp_path / family))("hello, world").input_ids)[None]
    assert type(loaded) is type(saved)
    assert not loaded.training
    with torch.inference_mode():
        expected, got = saved(ids).logits, loaded(ids).logits
    assert torch.equal(got.argmax(-1), expected.argmax(-1))
    torch.testing.assert_close(got, expected)


@pytest.mark.wide
def test_the_hub_cache_is_read_without_the_hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached model and its tokenizer load by hub id and by alias, and nobody asks the hub."""
    copy_to_hub_cache(llama, tmp_path / "hub", "org/big")
    monkeypatch.setattr(hub, "fault", lambda *_: pytest.fail("the hub was asked"))
    for name in ("org/big", "big"):
        assert models.load_model(name, "target", CPU, torch.float32).config.vocab_size == 300
        assert len(models.load_tokenizer(name)) == 258


@pytest.mark.wide
def test_a_cached_model_without_its_tokenizer_asks_the_hub(llama: Path, tmp_path: Path) -> None:
    """A tokenizer that is not in the cache is reported as such, and no empty one is made in its place."""
    copy_to_hub_cache(llama, tmp_path / "hub", "org/big")
    next((tmp_path / "hub").rglob("tokenizer.json")).unlink()
    with pytest.raises(ModelError, match=r"model 'big' \(org/big\) is not on disk, or not all of it"):
        models.load_tokenizer("big")


@pytest.mark.wide
def test_a_model_that_is_not_on_disk_without_network() -> None:
    """The sentence names role, alias and hub id, says why, and how to point at a local copy."""
    assert load_fault("big") == (
        "target 'big' (org/big) is not on disk, or not all of it, and the hub is out of reach (Name or service not "
        "known): pass the directory of a local copy, or name that once with `specframe models add big PATH`"
    )
    assert "`specframe models add ALIAS PATH`" in load_fault("org/other", "draft")


@pytest.mark.wide
def test_a_silent_hub_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that has not answered within the time limit is given up on while it is still silent."""
    silence = threading.Event()
    monkeypatch.setattr(hub, "fault", ASK_HUB)
    monkeypatch.setattr(hub, "SECONDS", 0.1)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: silence.wait(60))
    try:
        assert "the hub is out of reach (no answer in 0.1 s)" in load_fault("org/other")
    finally:
        silence.set()


@pytest.mark.wide
def test_offline_mode_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the hub client's offline mode on, no request is made and the sentence says why."""
    monkeypatch.setattr(hub, "fault", ASK_HUB)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "offline mode is enabled" in load_fault("org/other")


@pytest.mark.wide
def test_what_the_hub_offers_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the hub has the model, transformers is called once more with leave to download."""
    calls = []

    class Factory:
        @staticmethod
        def from_pretrained(location: str, **options: object) -> str:
            calls.append((location, options["local_files_only"], options["trust_remote_code"]))
            return "fetched"

    monkeypatch.setattr(hub, "fault", lambda *_: None)
    monkeypatch.setattr(models, "AutoTokenizer", Factory)
    assert models.load_tokenizer("big") == "fetched"
    assert calls == [("org/big", False, False)]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (T5Config(architectures=["T5ForConditionalGeneration"]), "T5ForConditionalGeneration"),
        (BartConfig(architectures=["BartForConditionalGeneration"]), "BartForConditionalGeneration"),
        (BertConfig(architectures=["BertForMaskedLM"]), "BertForMaskedLM"),
        (T5Config(), "T5Config"),
    ],
)
def test_other_kinds_of_models_are_refused(config: PreTrainedConfig, kind: str, tmp_path: Path) -> None:
    """Encoder-decoders and masked language models are refused before their weights are read."""
    config.save_pretrained(tmp_path)
    assert load_fault(tmp_path) == f"target '{tmp_path}' is a {kind}: expected a causal language model"


@pytest.mark.wide
def test_something_that_is_no_model() -> None:
    """An object of another type is refused with what was expected."""
    with pytest.raises(ModelError, match="the draft is a int: expected an alias, a directory, a hub id or a loaded"):
        models.load_model(5, "draft", CPU, torch.float32)


@pytest.mark.wide
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_directory_without_a_tokenizer(family: str, tmp_path: Path) -> None:
    """A named model without a tokenizer is an error, also where transformers would make an empty one."""
    save(family, tmp_path / family)
    (tmp_path / family / "tokenizer.json").unlink()
    with pytest.raises(
        ModelError, match=r"the tokenizer of model '.*' cannot be read: expected one of tokenizer\.json"
    ):
        models.load_tokenizer(tmp_path / family)
    assert models.load_tokenizer(models.load_model(tmp_path / family, "target", CPU, torch.float32)) is None


@pytest.mark.wide
def test_a_tokenizer_of_the_older_kind(copy: Path) -> None:
    """A SentencePiece file that cannot be read comes with the packages that reading one takes."""
    (copy / "tokenizer.json").unlink()
    (copy / "tokenizer.model").write_bytes(b"\xff" * 100)
    (copy / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    with pytest.raises(ModelError, match=r"\(a tokenizer\.model needs the packages sentencepiece and protobuf\)$"):
        models.load_tokenizer(copy)


SMALL_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
}
SMALL_T5 = {"vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}


def with_nan() -> PreTrainedModel:
    """Return a model one of whose weights is broken."""
    model = zoo.build("llama")
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 5] = torch.nan
    return model


def set_to(implementation: str) -> PreTrainedModel:
    """Return a model that attends in a way that takes no mask tensor."""
    model = zoo.build("llama")
    model.config._attn_implementation = implementation
    return model


def faulty(name: str, when: Callable[[Any, int, Any], bool], shifted: bool = False) -> PreTrainedModel:
    """Return a model that makes masks with nothing masked, or shifts positions, whenever ``when`` says so.

    Args:
        name: of the model without the fault.
        when: (configuration, tokens fed, cache) -> whether the fault shows.
        shifted: positions are shifted by the number of cached tokens; masks are as they should be.
    """
    model = zoo.build(name)
    forward = model.forward

    @functools.wraps(forward)
    def other(*, input_ids: Any, attention_mask: Any = None, position_ids: Any, **options: Any) -> Any:
        rows, fed = input_ids.shape
        cache = options.get("past_key_values")
        if attention_mask is None and when(model.config, fed, cache):
            if shifted:
                position_ids = position_ids + cache.get_seq_length()
            else:
                attention_mask = torch.zeros(rows, 1, fed, fed)  # every token sees every other
        return forward(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **options)

    model.forward = other
    return model


OTHER_KINDS = {
    "headless": (
        lambda: transformers.LlamaModel(zoo.build("llama").config),
        "is a LlamaModel, a model without a language modelling head:",
    ),
    "vision": (
        lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL_VISION)),
        "is a ViTForImageClassification, a model without a language modelling head:",
    ),
    "encoder-decoder": (
        lambda: transformers.T5ForConditionalGeneration(T5Config(**SMALL_T5)),
        "is a T5ForConditionalGeneration, an encoder-decoder model:",
    ),
    "encoder": (
        lambda: architectures.build("bert", is_decoder=False),
        r"\(BertLMHeadModel\) gives other logits when it makes its masks itself, off by .*: expected a causal language model",
    ),
    "own positions": (lambda: architectures.build("cpmant"), r"\(CpmAntForCausalLM\) takes no position_ids:"),
    "a window that is not kept": (
        lambda: architectures.build("moshi"),
        r"\(MoshiForCausalLM\) gives other logits when it makes its masks itself, off by .* sliding window",
    ),
    "no causal mask with a cache": (
        lambda: faulty("llama", lambda config, fed, cache: cache is not None and fed > 1),
        r"\(LlamaForCausalLM\) gives other logits when it makes its masks itself, off by",
    ),
    "positions of its own for a token alone": (
        lambda: faulty("llama", lambda config, fed, cache: cache is not None and fed == 1, shifted=True),
        r"\(LlamaForCausalLM\) gives other logits when it makes its masks itself, off by",
    ),
    "NaN": (
        with_nan,
        r"the logits of the (target|draft) \(LlamaForCausalLM\) are not finite after four tokens: expected",
    ),
    "flex": (
        lambda: set_to("flex_attention"),
        r"\(LlamaForCausalLM\) is set to flex_attention, which takes no mask tensor: expected sdpa or eager",
    ),
}


@pytest.mark.wide
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_loaded_models_of_other_kinds_are_refused(kind: str, role: str) -> None:
    """By one sentence that names the class, before anything is decoded, as the target and as the draft."""
    make, message = OTHER_KINDS[kind]
    model, usual = make().eval(), zoo.build("qwen3")
    pair = (model, usual) if role == "target" else (usual, model)
    with pytest.raises(ModelError, match=message) as caught:
        harness.decode(harness.pipeline(*pair, batch_size=2, draft_length=2), harness.requests([[5, 7, 9]], 4))
    assert "\n" not in str(caught.value)
    assert f"the {role} " in str(caught.value)


def test_a_model_that_goes_by_the_order_of_slots_is_refused() -> None:
    """A model that has the first row's mask for all rows gives other logits where another row's keys are in other slots."""
    model = zoo.build("llama", num_hidden_layers=1)
    forward = model.forward
    model.forward = functools.wraps(forward)(
        lambda *, attention_mask, **given: forward(attention_mask=attention_mask[:1].expand_as(attention_mask), **given)
    )
    with pytest.raises(ModelError, match="gives other logits when the same tokens have other slots, off by"):
        _ = ModelRunner(model, "target").kv_shapes


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "options"), [("doge", {}), ("doge", {"keep_window_size": 6}), ("gpt_neox_japanese", {})]
)
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec"])
def test_masks_of_each_head_and_keys_in_one_piece(name: str, options: dict[str, int], align: str) -> None:
    """Models with a mask for each head over grouped heads, and models that take contiguous keys for granted, are exact.

    Where transformers itself gives such a model other masks than it should, the model is refused.
    """
    target = architectures.build(name, **options)
    for key, weight in target.named_parameters():
        if key.endswith(".A"):  # Doge starts with zeros here, by which all tokens are equally worth keeping
            torch.nn.init.constant_(weight, 0.7)
    requests = harness.requests(harness.random_prompts((3, 19, 1, 7), zoo.VOCABULARY), [9, 12, 3, 7])
    pipe = harness.pipeline(target, zoo.good_draft(target), align=align, batch_size=3, draft_length=3)
    if name in architectures.FAULTY:
        with pytest.raises(ModelError, match="gives other logits when it makes its masks itself"):
            harness.decode(pipe, requests)
    else:
        harness.check(pipe, requests)


def of_images_and_text() -> PreTrainedModel:
    """Return a small random model of images and text."""
    vision = transformers.CLIPVisionConfig(**SMALL_VISION)
    config = transformers.LlavaConfig(text_config=zoo.build("llama").config, vision_config=vision, image_token_index=96)
    torch.manual_seed(0)
    target = transformers.LlavaForConditionalGeneration(config).eval()
    for weight in target.parameters():
        torch.nn.init.normal_(weight, std=zoo.WIDTH)
    return target


@pytest.mark.wide
def test_a_multimodal_model_decodes_text() -> None:
    """A loaded model of images and text is decoded as a language model, from token ids."""
    target = of_images_and_text()
    pipe = harness.pipeline(target, zoo.good_draft(target), batch_size=2, draft_length=3)
    harness.check(pipe, harness.requests(harness.random_prompts((3, 19, 1), 96), 6))


@pytest.mark.wide
@pytest.mark.parametrize("role", ["target", "draft"])
def test_another_precision_by_autocast_is_refused(role: str) -> None:
    """Under autocast a model in another precision is refused; ``generate`` drafts for no target in another. Outside, it works."""
    usual, half = zoo.build("qwen3"), zoo.build("qwen3").to(torch.bfloat16)
    target, draft = (usual, half) if role == "target" else (half, usual)
    pipe, asked = harness.pipeline(target, draft, batch_size=2, draft_length=2), harness.requests([[5, 7, 9]], 4)
    message = (
        rf"the {role} \(Qwen3ForCausalLM\) is in float32 and torch.autocast is on for bfloat16: expected one precision"
    )
    ids = torch.tensor([[5, 7, 9]])
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ModelError, match=message):
            harness.decode(pipe, asked)
        drafted = functools.partial(target.generate, custom_generate=assisted(draft, 2))
        asked_of = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 4}
        if role == "draft":
            with pytest.raises(ModelError, match=message):
                drafted(ids, **asked_of)
        else:
            with pytest.warns(SpecframeWarning, match="autocast"):
                assert drafted(ids, **asked_of).equal(target.generate(ids, **asked_of))
    assert len(harness.decode(pipe, asked)[0].token_ids) == 4


@pytest.mark.wide
def test_vocabularies_with_other_tokens_are_refused() -> None:
    """The first token, by id, that has another id or is unknown on the other side is named, and how many there are."""
    swapped = ALPHABET | {"a": ALPHABET["b"], "b": ALPHABET["a"]}
    swaps = f"in 2 tokens: the first, 'a', has id {ALPHABET['a']} in the target and {ALPHABET['b']} in the draft"
    many = [f"<extra {number}>" for number in range(VOCABULARY_SLACK + 1)]  # than were ever added to a model
    plain = tokenizer_of(ALPHABET)
    for target, draft, said in (
        (plain, tokenizer_of(swapped), swaps),
        (tokenizer_of(ALPHABET, "<user>"), tokenizer_of(ALPHABET, "<think>"), "in 2 tokens: the first, '<user>'"),
        (
            tokenizer_of(ALPHABET, *many),
            plain,
            "in 257 tokens: the first, '<extra 0>', has id 258 in the target and none",
        ),
    ):
        with pytest.raises(ModelError, match=said):
            check_vocabularies(sized(600), sized(600), target, draft)


@pytest.mark.wide
@pytest.mark.parametrize("known", [None, "target", "draft"])
def test_sizes_are_compared_where_a_tokenizer_is_unknown(known: str | None) -> None:
    """Without both tokenizers, a padding's worth of difference passes and more does not."""
    tokenizers = [tokenizer_of(ALPHABET) if side == known else None for side in ("target", "draft")]
    check_vocabularies(sized(151936), sized(152064), *tokenizers)
    with pytest.raises(ModelError, match="32000 ids in the target and 151936 in the draft"):
        check_vocabularies(sized(32000), sized(151936), *tokenizers)


@pytest.mark.wide
def test_vocabularies_that_differ_draft_through_text() -> None:
    """One vocabulary takes the drafter for models; two take text, for which both tokenizers are needed."""
    swapped = ALPHABET | {"a": ALPHABET["b"], "b": ALPHABET["a"]}
    own, other = tokenizer_of(ALPHABET), tokenizer_of(swapped)
    assert share_vocabulary(sized(300), sized(300), own, own)
    assert not share_vocabulary(sized(300), sized(300), own, other)
    assert share_vocabulary(sized(300), sized(300), None, other)
    with pytest.raises(ModelError, match=r"32000 ids in the target.*needs both tokenizers, and the target has none"):
        share_vocabulary(sized(32000), sized(300), None, other)
    few = tokenizer_of({token: index for token, index in ALPHABET.items() if token != "T"})
    with pytest.raises(ModelError, match=r"the vocabularies differ.*the draft has one that changes text"):
        share_vocabulary(sized(300), sized(300), own, few)


@pytest.mark.wide
def test_drafters_without_a_model_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no draft model is known, the drafters that need none are named, as far as plugins are there that have them."""
    offered = (
        r": name one as the drafter, 'prompt-lookup' or 'early-exit', which need none, or 'none' for plain decoding$"
    )
    with pytest.raises(OptionError, match=offered):
        choose("org/other", "auto")
    for purpose in ("early exit", "prompt lookup"):
        monkeypatch.setitem(registry().defaults, purpose, [])
    with pytest.raises(OptionError, match=r": name one as the drafter, or 'none' for plain decoding$"):
        choose("org/other", "auto")


@pytest.mark.wide
@pytest.mark.parametrize("alias", ["", "a/b", "a b", "-a", "a,b", "a=b"])
def test_bad_alias_names(alias: str, llama: Path, home: Path) -> None:
    """A name that could be read as a path, an option or a list is refused and nothing is written."""
    with pytest.raises(ModelError, match="expected letters, digits"):
        model_names.add_alias(alias, llama)
    assert not home.exists()


@pytest.mark.wide
@pytest.mark.parametrize("alias", ["auto", "none"])
def test_an_alias_does_not_hide_a_drafter(alias: str, llama: Path) -> None:
    """A name that ``drafter`` already understands is refused."""
    with pytest.raises(ModelError, match=f"alias '{alias}' already means a drafter"):
        model_names.add_alias(alias, llama)


@pytest.mark.wide
@pytest.mark.parametrize("text", ["[models", "[models]\na = 1", "models = 3"])
def test_a_broken_alias_file(text: str, home: Path) -> None:
    """A file that is no TOML, or holds other things, is named."""
    home.mkdir()
    (home / "models.toml").write_text(text)
    with pytest.raises(ModelError, match=rf"the aliases in {home / 'models.toml'}"):
        aliases.user_aliases()


@pytest.mark.wide
def test_aliases_are_listed_with_their_state(llama: Path, tmp_path: Path, home: Path) -> None:
    """Every alias is listed with its pairing, who offers it, and whether it is on disk."""
    copy_to_hub_cache(llama, tmp_path / "hub", "org/big")
    home.mkdir()
    gone = tmp_path / "gone"
    (home / "models.toml").write_text(f"[models]\nmine = {json.dumps(str(llama))}\ngone = {json.dumps(str(gone))}\n")
    assert model_names.known_aliases() == [
        ("big", "org/big", None, "some-models", "cached"),
        ("gone", str(gone), None, "you", "not on disk"),
        ("mine", str(llama), None, "you", "local"),
        ("small", "org/small", "big", "some-models", "not on disk"),
    ]


@pytest.mark.wide
def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Auto is CUDA where there is one; names pass."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert models.pick_device("auto") == models.pick_device("cpu") == models.pick_device(CPU) == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert models.pick_device("auto") == torch.device("cuda")
    assert models.pick_device("cuda:1") == torch.device("cuda:1")


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "device 'gpu': expected auto, cpu, cuda or cuda:N"),
        ("cuda:x", "device 'cuda:x': expected auto, cpu, cuda or cuda:N"),
        ("cuda", "device 'cuda' is not there: expected cpu, since this machine has no CUDA device"),
        ("cuda:3", "device 'cuda:3' is not there: expected cpu, since this machine has no CUDA device"),
    ],
)
def test_bad_devices(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown device and a CUDA device that is not there are told apart."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(OptionError) as caught:
        models.pick_device(name)
    assert str(caught.value) == message


TARGETS = {
    "typo": ("bigg", UnknownNameError, r"^unknown model 'bigg': .*did you mean 'big'\?$"),
    "no directory": (
        "./nonexist",
        ModelError,
        r"^target './nonexist' is not there: expected the directory of a saved model$",
    ),
    "nothing": ("", OptionError, r"^target: expected an alias, .*, got ''$"),
    "number": (5, OptionError, r"^target: expected an alias, .* or a loaded transformers model, got 5$"),
    "a file": (__file__, ModelError, r"^target '.*test_models.py' is a file: expected the directory of a saved model$"),
    "a folder of something else": (
        str(Path(__file__).parent),
        ModelError,
        r"^target '.*' is a directory without config.json: expected the directory of a saved model$",
    ),
}


@pytest.mark.wide
@pytest.mark.parametrize("case", TARGETS)
def test_a_target_that_is_none_is_told_as_such(case: str) -> None:
    """The cause of a target without a draft model is named: a name with a letter wrong, no directory, no model at all."""
    target, kind, said = TARGETS[case]
    with pytest.raises(kind, match=said):
        choose(target, "auto")


@pytest.mark.wide
def test_a_name_of_your_own_is_removed(tmp_path: Path, home: Path) -> None:
    """A user's alias can be taken back; what a plugin offers under that name is there again, and cannot be removed."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    for alias in ("big", "other"):
        model_names.add_alias(alias, tmp_path / "mine")
    assert model_names.remove_alias("big") == str(tmp_path / "mine")
    assert (aliases.resolve("big"), aliases.resolve("other")) == ("org/big", str(tmp_path / "mine"))
    with pytest.raises(ModelError, match=r"^alias 'big' is offered by some-models: expected one of your own"):
        model_names.remove_alias("big")
    with pytest.raises(UnknownNameError, match=r"^unknown alias of your own 'othr': .*did you mean 'other'\?$"):
        model_names.remove_alias("othr")


def configure(folder: Path, changed: dict[str, object]) -> None:
    """Change the configuration of a saved model."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))


def lacking_a_tensor(folder: Path) -> None:
    """Take one tensor out of the weights of a saved model."""
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def cut_off(folder: Path) -> None:
    """Cut the weights of a saved model off."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def holding(name: str, text: str) -> Callable[[Path], object]:
    """Return what writes a file of a saved model anew."""
    return lambda folder: (folder / name).write_text(text)


CONFIGURATION = r"the configuration of target '.*' cannot be read: "
GENERATION = r"the generation_config.json of target '.*' cannot be read: generation_config.json is"
OWN_CODE = '{"model_type": "unheard-of", "auto_map": {"AutoConfig": "code.Config"}}'
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights cut off": (cut_off, r"the weights of target '.*' cannot be read: "),
    "a missing tensor": (
        lacking_a_tensor,
        r"the weights of target '.*' lack 1 tensors of the model, the first 'lm_head.weight'$",
    ),
    "no configuration": (
        lambda folder: (folder / "config.json").unlink(),
        r"target '.*' is a directory without config.json: expected the directory of a saved model$",
    ),
    "no JSON": (holding("config.json", "{"), CONFIGURATION),
    "an unknown kind": (holding("config.json", '{"model_type": "unheard-of"}'), CONFIGURATION),
    "code of its own": (holding("config.json", OWN_CODE), CONFIGURATION),
    "no heads": (
        lambda folder: configure(folder, {"num_attention_heads": 0}),
        r"the (configuration|weights) of target '.*' cannot be read: ",
    ),
    "a precision": (lambda folder: configure(folder, {"dtype": "float99"}), CONFIGURATION + r".*'float99'"),
    "a generation config without an end": (holding("generation_config.json", "{broken"), GENERATION),
    "an empty generation config": (holding("generation_config.json", ""), GENERATION),
}


@pytest.mark.wide(but=["no heads", "a generation config without an end"])
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_refused(case: str, copy: Path) -> None:
    """Nothing is half loaded, made up or passed over, as transformers does, and nothing is asked on the terminal."""
    damage, said = BROKEN[case]
    damage(copy)
    assert re.match(said, load_fault(copy))


@pytest.mark.wide
def test_weights_of_another_shape_are_refused_in_a_sentence(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The first tensor that does not fit is named with both shapes, and transformers prints nothing."""
    configure(copy, {"intermediate_size": 40})
    capfd.readouterr()
    assert re.search(r"'model\..*' has shape .*, where its configuration says .*, and 5 others", load_fault(copy))
    assert "MISMATCH" not in "".join(capfd.readouterr())


@pytest.mark.wide
def test_tensors_that_are_not_used_are_told_in_a_sentence(copy: Path) -> None:
    """Weights of a layer that the configuration has not are named once, and the model is loaded."""
    configure(copy, {"num_hidden_layers": 1})
    with pytest.warns(SpecframeWarning, match=r"hold \d+ tensors that .* the first 'model.layers.1.*not used$"):
        loaded = models.load_model(str(copy), "target", CPU, torch.float32)
    assert loaded.config.num_hidden_layers == 1


@pytest.mark.wide
def test_a_broken_tokenizer_is_named_by_its_file(copy: Path) -> None:
    """An empty file and one that is not JSON are told apart."""
    for content, said in (("", "tokenizer.json is empty"), ("{", "tokenizer.json is not JSON")):
        (copy / "tokenizer.json").write_text(content)
        with pytest.raises(
            ModelError, match=rf"^the tokenizer of model '.*' cannot be read: {said}.*: expected a JSON object$"
        ):
            models.load_tokenizer(copy)


def test_an_alias_that_hides_another_says_so(llama: Path, home: Path) -> None:
    """`models add` says which model the name was of, and how to name it again."""
    told = invoke("models", "add", "big", str(llama)).output
    assert told == f"big is {llama}, in the place of org/big until `specframe models remove big`\n"
    assert invoke("models", "add", "mine", str(llama)).output == f"mine is {llama}\n"
