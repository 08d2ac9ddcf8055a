"""Every draft of heads that draft in one pass, MTP layers and EAGLE-1 is what an independent implementation gives."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from head_drafts import Depths, in_runs
from safetensors.torch import load_file
from specframe_heads.blocks import pard
from specframe_heads.blocks.block_drafter import DFlashDrafter, DSpark
from specframe_heads.blocks.pard import Pard
from specframe_heads.blocks.peagle import PEagle
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.eagle.eagle_drafter import Eagle
from specframe_heads.formats.recognised import format_of
from specframe_heads.head import HeadDrafter
from specframe_heads.mtp.mtp_drafter import Mtp
from specframe_heads.mtp.mtp_layers import block_config
from specframe_heads.mtp.mtp_weights import together
from specframe_heads.target import Target
from specframe_testing import harness, zoo
from specframe_testing.heads import block_heads as block_heads
from specframe_testing.heads import checkpoints as eagle_heads
from specframe_testing.heads import mtp as mtp_heads
from specframe_testing.heads.scripted import ScriptedCalls, scripted
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import MtpLayer

from specframe.errors import ModelError

STATES = {"speculators": 0, "z_lab": 1, "deepspec": 1}
"""What an id of a layer is short of the number of a hidden state."""


def norm(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * states / (states.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def turned(states_THD: torch.Tensor, positions: list[int]) -> torch.Tensor:
    """Turn each pair (d, d + D/2) as a complex number by its position."""
    half = states_THD.shape[-1] // 2
    speeds = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.tensor(positions, dtype=torch.float64)[:, None] * speeds
    pairs = torch.complex(states_THD[..., :half].double(), states_THD[..., half:].double())
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([pairs.real, pairs.imag], dim=-1).float()


def attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: list[list[int]]) -> torch.Tensor:
    """Return what each query has of the keys that it sees, its heads side by side."""
    rows, shared = [], query.shape[1] // key.shape[1]
    for query_HD, keys in zip(query, seen, strict=True):
        heads = []
        for head, query_D in enumerate(query_HD):
            scores = key[keys, head // shared] @ query_D / len(query_D) ** 0.5
            heads.append(scores.softmax(0) @ value[keys, head // shared])
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def straightforward(
    tensors: dict[str, torch.Tensor],
    config: dict[str, Any],
    features_TF: torch.Tensor,
    block_WH: torch.Tensor,
    sees: Callable[[str, int, int], bool],
) -> torch.Tensor:
    """Return the normed states of a block after T tokens of context; ``sees``: (kind of layer, place of a query, of a key)."""
    context = norm(features_TF @ tensors["fc.weight"].T, tensors["hidden_norm.weight"])
    count, size = len(features_TF), 8
    places = [*range(count), *range(count, count + len(block_WH))]
    states = block_WH
    for layer, kind in enumerate(config["layer_types"]):
        at = {name.split(f"layers.{layer}.")[1]: one for name, one in tensors.items() if f"layers.{layer}." in name}
        read = norm(states, at["input_layernorm.weight"])
        both = torch.cat([context, read])
        query = norm((read @ at["self_attn.q_proj.weight"].T).view(len(read), 4, size), at["self_attn.q_norm.weight"])
        key = norm((both @ at["self_attn.k_proj.weight"].T).view(len(both), 2, size), at["self_attn.k_norm.weight"])
        value = (both @ at["self_attn.v_proj.weight"].T).view(len(both), 2, size)
        seen = [[s for s in range(len(both)) if sees(kind, count + w, s)] for w in range(len(read))]
        found = attended(turned(query, places[count:]), turned(key, places), value, seen)
        states = fed_forward(at, states + found @ at["self_attn.o_proj.weight"].T)
    return norm(states, tensors["norm.weight"])


class Reference:
    """What a checkpoint's head gives for one row, computed from its files."""

    def __init__(self, folder: str, target: PreTrainedModel, form: str) -> None:
        self.config = json.loads((Path(folder) / "config.json").read_text())
        self.tensors, self._target = load_file(Path(folder) / "model.safetensors"), target
        nested = self.config.get("dflash_config", {})
        own = self.config.get("aux_hidden_state_layer_ids") or self.config.get("target_layer_ids")
        ids = own or nested["target_layer_ids"]
        self._layers = [one + STATES[form] for one in ids]
        self._mask = self.config.get("mask_token_id", nested.get("mask_token_id"))
        self._embed = self.tensors.get("embed_tokens.weight", target.get_input_embeddings().weight)
        self._head = self.tensors.get("lm_head.weight", target.get_output_embeddings().weight)
        self.anchored = form == "deepspec" or self.config.get("speculators_model_type") == "dspark"

    def states(self, ids: list[int], count: int) -> torch.Tensor:
        """Return the states of the slots that predict ``count`` tokens after a row's: the first of the whole block's."""
        hidden = self._target(torch.tensor([ids]), output_hidden_states=True).hidden_states
        features_TF = torch.cat([hidden[layer][0, :-1] for layer in self._layers], dim=-1)
        block = torch.tensor([ids[-1]] + [self._mask] * (self.config["block_size"] - 1))
        config = self.config.get("transformer_layer_config", self.config)
        anchor, window, kind = len(ids) - 1, config["sliding_window"], self.config.get("speculators_model_type")
        causal = self.config.get("dflash_config", {}).get("causal", False)  # z-lab's layers see both ways without it

        def sees(layer: str, query: int, key: int) -> bool:
            slides = layer == "sliding_attention"
            if kind is None:
                return (key <= query or not causal) and (not slides or abs(query - key) < window)
            wide = self.config.get("sliding_window_non_causal", False)
            return not slides or (key >= anchor - window and (wide or key <= query))

        return straightforward(self.tensors, config, features_TF, self._embed[block], sees)[not self.anchored :][:count]

    @torch.inference_mode()
    def logits(self, ids: list[int], drafted: list[int], count: int) -> torch.Tensor:
        """Return the logits of the token after some that are drafted already, of a draft of ``count``."""
        states = self.states(ids, count)
        logits_V = self._head @ states[len(drafted)]
        biased = "markov_head.markov_w1.weight" in self.tensors
        return logits_V + self._bias(states, [ids[-1], *drafted]) if biased else logits_V

    def _bias(self, states: torch.Tensor, before: list[int]) -> torch.Tensor:
        """Return the Markov head's bias for the token after those of the draft."""
        t = {name.removeprefix("markov_head."): one for name, one in self.tensors.items()}
        embedded, kind = t["markov_w1.weight"][before], self.config["markov_head_type"]
        if kind == "gated":
            barrier = torch.cat([states[len(before) - 1], embedded[-1]])
            gate = (t["gate_proj.weight"] @ barrier + t["gate_proj.bias"]).sigmoid()
            return t["markov_w2.weight"] @ (gate * embedded[-1])
        if kind == "vanilla":
            return t["markov_w2.weight"] @ embedded[-1]
        state = out = torch.zeros(block_heads.RANK)
        for slot, one in enumerate(embedded):
            joint = t["joint_proj.weight"] @ torch.cat([state, one, states[slot]]) + t["joint_proj.bias"]
            gate, new, out = joint.chunk(3)
            state = gate.sigmoid() * state + (1 - gate.sigmoid()) * new.tanh()
        return t["markov_w2.weight"] @ out.tanh()


def causal(
    at: dict[str, torch.Tensor], query_in: torch.Tensor, key_in: torch.Tensor, heads: int, groups: int, size: int
) -> torch.Tensor:
    """Return causal attention of Llama's kind, before its output matrix."""
    places = list(range(len(query_in)))

    def projected(part: str, states: torch.Tensor, count: int) -> torch.Tensor:
        made = states @ at[f"self_attn.{part}_proj.weight"].T + at.get(f"self_attn.{part}_proj.bias", 0.0)
        return made.view(-1, count, size)

    query, key = turned(projected("q", query_in, heads), places), turned(projected("k", key_in, groups), places)
    return attended(query, key, projected("v", key_in, groups), [[*range(place + 1)] for place in places])


def fed_forward(at: dict[str, torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    """Return states after the second half of a layer."""
    read = norm(states, at["post_attention_layernorm.weight"])
    gate = torch.nn.functional.silu(read @ at["mlp.gate_proj.weight"].T) * (read @ at["mlp.up_proj.weight"].T)
    return states + gate @ at["mlp.down_proj.weight"].T


class OfPEagle:
    """P-EAGLE for one row: an EAGLE-3 head over all pairs and masks at once."""

    def __init__(self, folder: str, target: PreTrainedModel) -> None:
        self.config = json.loads((Path(folder) / "config.json").read_text())
        self.tensors, self._target = load_file(Path(folder) / "model.safetensors"), target

    @torch.inference_mode()
    def logits(self, ids: list[int], drafted: list[int], count: int) -> torch.Tensor:
        """Return the logits of the token after some that are drafted already, of a draft of ``count``."""
        t, size = self.tensors, self.config["transformer_layer_config"]["head_dim"]
        hidden = self._target(torch.tensor([ids]), output_hidden_states=True).hidden_states
        three = torch.cat([hidden[one][0, :-1] for one in self.config["eagle_aux_hidden_state_layer_ids"]], dim=-1)
        features = torch.cat([three, t["mask_hidden"][0].expand(count - 1, -1)]) @ t["fc.weight"].T
        tokens = t["embed_tokens.weight"][torch.tensor(ids[1:] + [self.config["mask_token_id"]] * (count - 1))]
        states = features
        for layer in range(self.config["transformer_layer_config"]["num_hidden_layers"]):
            at = {name.split(f"layers.{layer}.")[1]: one for name, one in t.items() if f"layers.{layer}." in name}
            read = norm(states if layer else tokens, at["input_layernorm.weight"])
            if layer == 0:
                read = torch.cat([read, norm(features, at["hidden_norm.weight"])], dim=-1)
            states = fed_forward(at, states + causal(at, read, read, 2, 2, size) @ at["self_attn.o_proj.weight"].T)
        return t["lm_head.weight"] @ norm(states[len(states) - count + len(drafted)], t["norm.weight"])


class OfEagle1:
    """EAGLE-1 for one row, in the authors' layout or that of `speculators` up to 0.2, which may have three norms more."""

    def __init__(self, folder: Path, target: PreTrainedModel) -> None:
        self.tensors, self._target = load_file(folder / "model.safetensors"), target
        for before, after in {"fusion_fc.": "fc.", "transformer.": "layers.0."}.items():
            self.tensors = {name.replace(before, after): one for name, one in self.tensors.items()}

    @torch.inference_mode()
    def logits(self, ids: list[int], drafted: list[int], count: int) -> torch.Tensor:
        """Return the logits of the token after some that are drafted already: predicted features follow the true ones."""
        t, size = self.tensors, self._target.config.hidden_size // 2
        at = {name.removeprefix("layers.0."): one for name, one in t.items() if name.startswith("layers.0.")}
        features = self._target.get_decoder()(torch.tensor([ids])).last_hidden_state[0, :-1]
        for depth in range(len(drafted) + 1):
            embedded = self._normed("embedding_layernorm", t["embed_tokens.weight"][[*ids[1:], *drafted[:depth]]])
            states = torch.cat([embedded, features], dim=-1) @ t["fc.weight"].T + t.get("fc.bias", 0.0)
            read = self._normed("layers.0.input_layernorm", states)
            states = fed_forward(at, states + causal(at, read, read, 2, 1, size) @ at["self_attn.o_proj.weight"].T)
            predicted = self._normed("pre_lm_head_layernorm", states)[-1]
            features = torch.cat([features, predicted[None]])
        return t.get("lm_head.weight", self._target.get_output_embeddings().weight) @ predicted

    def _normed(self, name: str, states: torch.Tensor) -> torch.Tensor:
        weight = self.tensors.get(f"{name}.weight")
        return states if weight is None else norm(states, weight)


class OfPard:
    """PARD for one row: the model over the row and the masks."""

    def __init__(self, folder: str, target: PreTrainedModel) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder)
        self._mask = self._model.config.pard_token

    @torch.inference_mode()
    def logits(self, ids: list[int], drafted: list[int], count: int) -> torch.Tensor:
        """Return the logits of the token after some that are drafted already."""
        return self._model(torch.tensor([ids + [self._mask] * (count - 1)])).logits[0, len(drafted) - count]


class OfMtp:
    """MTP layers for one row: transformers' own modules, without a cache."""

    def __init__(self, layers: list[Any], target: PreTrainedModel) -> None:
        self._layers, self._target = layers, target

    @torch.inference_mode()
    def logits(self, ids: list[int], drafted: list[int], count: int) -> torch.Tensor:
        """Return the logits of the token after some that are drafted already."""
        features = self._target.get_decoder()(torch.tensor([ids])).last_hidden_state[0, :-1]
        states, tokens = features, list[int]()
        for depth in range(len(drafted) + 1):
            if depth < len(self._layers):
                tokens = [*ids, *drafted][1 + depth : len(ids) + depth]  # a row may have fewer tokens than layers
            else:
                features, tokens = torch.cat([features, states[-1:]]), [*tokens, drafted[depth - 1]]
            states = self._run(self._layers[min(depth, len(self._layers) - 1)], features, tokens)
            if depth < len(self._layers) - 1:
                features = states
        return self._target.get_output_embeddings().weight @ states[-1]

    def _run(self, layer: Any, features: torch.Tensor, tokens: list[int]) -> torch.Tensor:
        places, count = torch.arange(len(tokens))[None], len(tokens)
        decoder = self._target.get_decoder()
        mask = torch.full((count, count), torch.finfo(torch.float32).min).triu(1)[None, None]
        embedded = decoder.embed_tokens(torch.tensor([tokens]))
        rotary = decoder.rotary_emb(embedded, places)
        return layer(embedded, features[None], rotary, mask, places, None)[0]


def of_own_names(target: PreTrainedModel, seeds: list[int], shares: bool = False) -> list[Any]:
    """Return transformers' modules for random MTP layers, whatever a checkpoint calls their parts.

    ``shares``: all have the first one's parts beside the block.
    """
    made, decoder = [], target.get_decoder()
    for seed in seeds:
        config = block_config(Target(target))
        layer = MtpLayer(config, type(decoder.layers[-1]), type(decoder.norm), 0)
        found = together(mtp_heads.parts(target, seed))
        if shares:
            first = mtp_heads.parts(target, seeds[0])
            found |= {name: one for name, one in first.items() if not name.startswith("block.")}
        layer.load_state_dict({name.replace("block.", "mtp_block."): one for name, one in found.items()})
        made.append(layer.eval())
    return made


Made = tuple[PreTrainedModel, HeadDrafter, Any]
"""A target, a drafter and the reference."""


def block(save: Callable[[Path, PreTrainedModel], str], form: str = "speculators") -> Callable[[Path], Made]:
    """Return a function that makes a block head for a small target."""

    def make(folder: Path) -> Made:
        target = target_of("qwen3")
        where = save(folder / "head", target)
        return target, drafter_of(where), Reference(where, target, form)

    return make


def parallel(save: Callable[[Path, PreTrainedModel], Any], reference: type) -> Callable[[Path], Made]:
    """Return a function that makes a head of another kind for a small target."""

    def make(folder: Path) -> Made:
        target = target_of("qwen3" if reference is OfEagle1 else "llama")
        where = save(folder / "head", target)
        return target, drafter_of(where), reference(where, target)

    return make


def own(make_target: Callable[[int], PreTrainedModel], layout: str, layers: int = 1) -> Callable[[Path], Made]:
    """Return a function that makes a target with MTP layers in its checkpoint."""

    def make(folder: Path) -> Made:
        target = mtp_heads.save_target(folder / "target", make_target(layers), layout, layers)
        if layers == 1 and layout == "after":  # transformers knows the published numbers of layers, 61 and 92
            target._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2\."]
        return target, Mtp(), OfMtp(of_own_names(target, [*range(layers)], layout == "beside"), target)

    return make


def in_a_file(folder: Path) -> Made:
    """Return a target and an MTP layer in a file of its own."""
    target = target_of("qwen3")
    where = mtp_heads.save_file_of(folder / "head", target)
    return target, drafter_of(where), OfMtp(of_own_names(target, [0]), target)


MADE: dict[str, Callable[[Path], Made]] = {
    "dflash": block(block_heads.speculators),
    "dflash-reduced": block(functools.partial(block_heads.speculators, hidden=24, drafted=50)),
    "dflash-windows": block(functools.partial(block_heads.speculators, windows=(4, None, 4), ids=(0, 1, 2))),
    "dflash-wide": block(functools.partial(block_heads.speculators, windows=(5,), sliding_window_non_causal=True)),
    "z-lab": block(block_heads.z_lab, "z_lab"),
    "z-lab-windows": block(functools.partial(block_heads.z_lab, windows=(4, None, 4)), "z_lab"),
    "z-lab-causal": block(functools.partial(block_heads.z_lab, windows=(3, None), nested={"causal": True}), "z_lab"),
    "deepspec-dflash": block(functools.partial(block_heads.deepspec, head=None), "deepspec"),
    "deepspec": block(block_heads.deepspec, "deepspec"),
    "dspark-gated": block(functools.partial(block_heads.speculators, kind="dspark", drafted=60, head="gated")),
    "dspark-rnn": block(functools.partial(block_heads.speculators, kind="dspark", head="rnn")),
    "peagle": parallel(block_heads.peagle, OfPEagle),
    "peagle-reduced": parallel(functools.partial(block_heads.peagle, drafted=40, depth=3), OfPEagle),
    "pard": parallel(block_heads.pard, OfPard),
    "eagle-1": parallel(eagle_heads.eagle1, OfEagle1),
    "eagle-1-biases": parallel(functools.partial(eagle_heads.eagle1, qkv_bias=True), OfEagle1),
    "eagle-1-speculators": parallel(eagle_heads.eagle1_speculators, OfEagle1),
    "eagle-1-without-norms": parallel(functools.partial(eagle_heads.eagle1_speculators, normed=False), OfEagle1),
    "eagle-1-other-theta": parallel(functools.partial(eagle_heads.eagle1_speculators, rope_theta=7.0), OfEagle1),
    "mtp-deepseek": own(mtp_heads.deepseek, "after"),
    "mtp-glm-3-layers": own(mtp_heads.glm, "after", 3),
    "mtp-beside": own(lambda _: target_of("qwen3"), "beside"),
    "mtp-beside-2-layers": own(lambda _: target_of("qwen3-moe"), "beside", 2),
    "mtp-in-a-file": in_a_file,
}
ALIGNMENTS = ("ragged", "eqspec", "exspec", "rollback")
DRAFTERS = {"eagle": Eagle, "dflash": DFlashDrafter, "dspark": DSpark, "peagle": PEagle, "pard": Pard, "mtp": Mtp}


@functools.cache
def target_of(name: str) -> PreTrainedModel:
    """Return a small target."""
    return zoo.build(name)


def drafter_of(folder: str | Path) -> Any:
    """Return the drafter that runs a checkpoint."""
    return DRAFTERS[format_of(Checkpoint.open(str(folder))).drafter](str(folder))


def assert_the_formulas(seen: list[ScriptedCalls], reference: Any, most: int = 20) -> None:
    """Assert that logits are those of the reference, for a sample of places; for equal rows and tokens they are compared once."""
    kept = {(*one.ids, -1, *one.drafted, -one.count): one for one in seen}
    assert len(kept) > 5
    for one in [*kept.values()][:: max(1, len(kept) // most)]:
        wanted = reference.logits(one.ids, one.drafted, one.count)[: len(one.logits_V)]
        where = f"{len(one.drafted) + 1} of {one.count} after {len(one.ids)} tokens"
        assert torch.allclose(one.logits_V, wanted, atol=2e-3, rtol=1e-3), where


def by_rule(name: str, align: str, folder: Path, limits: Sequence[int] = (9, 14, 6, 11), **options: Any) -> None:
    """Decode a ragged batch with right and wrong drafts, and check the logits of the drafts."""
    target, drafter, reference = MADE[name](folder)
    asked = harness.requests(harness.random_prompts([5, 1, 12, 3, 8, 2][: len(limits)], zoo.VOCABULARY), limits)
    seen: list[ScriptedCalls] = []
    scripted(drafter, seen, harness.truth(target, asked), in_runs)
    options = {"batch_size": 3, "draft_length": 4, **options}
    results = harness.check(harness.pipeline(target, drafter, align=align, **options), asked)
    accepted = sum(result.metrics.num_accepted_draft_tokens for result in results)
    assert accepted > (0 if align == "rollback" else 8)
    assert_the_formulas(seen, reference)


@pytest.mark.wide(but=["z-lab-windows", "z-lab-causal", "eagle-1-biases", "eagle-1-other-theta"])
@pytest.mark.parametrize("name", MADE)
def test_every_draft_is_the_formulas(name: str, tmp_path: Path) -> None:
    """In a ragged batch, whatever is accepted, the logits of draft tokens are those of an independent implementation."""
    by_rule(name, ALIGNMENTS[[*MADE].index(name) % 4], tmp_path)


@pytest.mark.wide(but=["pard"])
@pytest.mark.parametrize("name", MADE)
def test_every_deferred_draft_is_the_formulas(name: str, tmp_path: Path) -> None:
    """Where the host has not read the round before, and drafts are of unlike lengths, the logits are those as well."""
    limits = [30, 5, 9, 7, 3, 4]  # a long draft is accepted, a prompt is read, and a short draft follows
    by_rule(name, "ragged", tmp_path, limits, rounds="deferred", draft_length=Depths(3, 1), batch_size=2)


def test_a_pard_head_that_cannot_be_made_without_weights_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of memory makes the model of its configuration; what transformers raises there names the folder."""
    zoo.build("qwen3").config.save_pretrained(tmp_path)

    def refuses(*_: Any, **__: Any) -> Any:
        raise ValueError("heads of no size")

    monkeypatch.setattr(pard.AutoModelForCausalLM, "from_config", refuses)
    with pytest.raises(ModelError, match=r"no model can be made of the configuration in .*: heads of no size"):
        pard.model_for(str(tmp_path), Target(zoo.build("qwen3").to("meta")))
