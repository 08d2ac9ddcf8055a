"""Heads made of checkpoints: Medusa, Hydra, Clover and Clover-2.

Sizes and numbers of heads are those of the tensors. Uploaded configurations are known to state others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch

from specframe.errors import ModelError
from specframe_heads.backbone import FAMILIES, configured, filled
from specframe_heads.checkpoint import Checkpoint, number
from specframe_heads.formats.format import Format
from specframe_heads.stepwise import names
from specframe_heads.stepwise.clover import Clover, Clover2
from specframe_heads.stepwise.head import StepHead
from specframe_heads.stepwise.hydra import Hydra
from specframe_heads.stepwise.layers import Layers, sizes
from specframe_heads.stepwise.medusa import Medusa
from specframe_heads.stepwise.steps import Steps
from specframe_heads.target import Target, require_hidden, require_vocabulary
from specframe_heads.vocabulary import DraftVocabulary

BACKBONE = ("layers.", "norm.", "enter.", "embed_tokens.")
"""The beginnings of the names of tensors that belong to the layers before the steps."""
CLOVER_PLACES, CLOVER2_PLACES = 3, 5
"""The places that Clover and Clover-2 are trained for. Files of Clover-2 do not say: all but the first share their weights."""


@attrs.frozen(eq=False)
class Read:
    """The tensors of a checkpoint under the names of the modules here."""

    checkpoint: Checkpoint
    tensors: dict[str, torch.Tensor]
    others: dict[str, torch.Tensor]
    """Further tensors that were asked for, under their own names."""

    @classmethod
    def of(cls, checkpoint: Checkpoint, rules: names.Rules, *others: str) -> Read:
        """Read what the rules name, and these tensors besides."""
        file = checkpoint.load(lambda name: name in others or names.own(rules, name) is not None)
        return cls(checkpoint, names.renamed(rules, file), {name: file[name] for name in others if name in file})

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor that every such checkpoint has; raise :class:`ModelError` where it is not there."""
        if name not in self.tensors:
            raise ModelError(f"{self.checkpoint} lacks a tensor: expected one that is {name!r} in the head")
        return tuple(self.tensors[name].shape)

    def count(self, part: str) -> int:
        """Return how many numbered modules a part has."""
        return names.count(self.tensors, part)

    def made(
        self, target: Target, steps: Steps, vocabulary: DraftVocabulary, backbone: Layers | None = None
    ) -> StepHead:
        """Return a head with these tensors.

        Args:
            target: the model that it is for.
            steps, backbone: made on the device "meta".
            vocabulary: of the logits.
        """
        place, whose = (target.device, target.dtype), str(self.checkpoint)
        first = {name: one for name, one in self.tensors.items() if name.startswith(BACKBONE)}
        filled(whose, steps, {name: one for name, one in self.tensors.items() if name not in first}, *place)
        if backbone is not None:
            filled(whose, backbone, first, *place)
        return StepHead(steps, vocabulary.to(target.device), backbone)


def medusa(checkpoint: Checkpoint, format: Format, target: Target) -> StepHead:
    """Return Medusa's heads."""
    rules = names.MEDUSA_VLLM if format.name == "Medusa of vLLM" else names.MEDUSA
    read = Read.of(checkpoint, rules, "token_map")
    size, drafted = read.shape("blocks.0.0.linear.weight")[1], read.shape("lm_heads.0.weight")[0]
    require_hidden(str(checkpoint), size, target)
    count, layers = read.count("blocks"), read.count(r"blocks\.0")
    bias, shared = "blocks.0.0.linear.bias" in read.tensors, read.count("lm_heads") < count
    vocabulary = vocabulary_of(checkpoint, drafted, target, read.others.get("token_map"))
    with torch.device("meta"):
        steps = Medusa(size, drafted, count, layers, bias, shared)
    return read.made(target, steps, vocabulary)


def hydra(checkpoint: Checkpoint, format: Format, target: Target) -> StepHead:
    """Return Hydra's heads; those of Hydra++ with their prefix layer, whose files leave its sizes to the target."""
    whose, read = str(checkpoint), Read.of(checkpoint, names.HYDRA)
    read = attrs.evolve(read, tensors=names.dense(read.tensors, "blocks"))
    (size, width), drafted = read.shape("blocks.0.0.linear.weight"), read.shape("lm_heads.0.weight")[0]
    require_hidden(whose, size, target)
    count, layers, depth = read.count("blocks"), read.count(r"blocks\.0"), read.count("layers")
    embedding = target.embedding(whose, size)
    with torch.device("meta"):
        steps = Hydra(size, drafted, count, layers, embedding, grounded=width > size)
    read.tensors["embed_tokens.weight"] = embedding
    backbone = layers_of(checkpoint, target, sizes(target), depth, norm=True) if depth else None
    return read.made(target, steps, vocabulary_of(checkpoint, drafted, target), backbone)


def clover(checkpoint: Checkpoint, format: Format, target: Target) -> StepHead:
    """Return Clover's heads."""
    whose, read = str(checkpoint), Read.of(checkpoint, names.CLOVER)
    size, config = read.shape("gate.q.weight")[0], checkpoint.config
    require_hidden(whose, size, target)
    lm_head = target.head(whose, size)
    with torch.device("meta"):
        steps = Clover(size, heads_of(checkpoint), read.count("blocks"), lm_head, eps_of(config))
    read.tensors["embed_tokens.weight"] = lm_head
    backbone = layers_of(checkpoint, target, config, read.count("layers"), norm=False)
    return read.made(target, steps, vocabulary_of(checkpoint, len(lm_head), target), backbone)


def clover2(checkpoint: Checkpoint, format: Format, target: Target) -> StepHead:
    """Return Clover-2's heads."""
    whose, read = str(checkpoint), Read.of(checkpoint, names.CLOVER2)
    size, config = read.shape("gate.q.weight")[0], checkpoint.config
    require_hidden(whose, size, target)
    lm_head, count = target.head(whose, size), number(config, "clover_num_heads") or CLOVER2_PLACES
    read.tensors.setdefault("embed_tokens.weight", lm_head)  # a file may leave it out: it is a copy
    embedding = read.tensors["embed_tokens.weight"].to(target.device, target.dtype)
    with torch.device("meta"):
        steps = Clover2(size, heads_of(checkpoint), count, embedding, lm_head, eps_of(config))
    backbone = layers_of(checkpoint, target, config, read.count("layers"), norm=True, enter=True)
    return read.made(target, steps, vocabulary_of(checkpoint, len(lm_head), target), backbone)


def layers_of(
    checkpoint: Checkpoint, target: Target, config: Mapping[str, Any], count: int, norm: bool, enter: bool = False
) -> Layers:
    """Return the layers before the steps, on the device "meta"."""
    given = {key: value for key, value in config.items() if key not in ("layer_types", "sliding_window")}
    given |= {"num_hidden_layers": count, "vocab_size": target.vocabulary, "tie_word_embeddings": False}
    made = configured(str(checkpoint), given, target.context)
    with torch.device("meta"):
        layers = Layers(made, norm, enter)
    layers.rotary_emb = FAMILIES[str(made.model_type)].rotary(config=made).to(target.device)  # has no tensors in files
    return layers


def heads_of(checkpoint: Checkpoint) -> int:
    """Return the number of a gate's heads, that of the layers' query heads."""
    if (found := number(checkpoint.config, "num_attention_heads")) is None:
        raise ModelError(f"the config.json of {checkpoint}: expected a whole number for num_attention_heads, got none")
    return found


def eps_of(config: Mapping[str, Any]) -> float:
    """Return the eps of norms."""
    return float(config.get("rms_norm_eps", 1e-6))


def vocabulary_of(
    checkpoint: Checkpoint, drafted: int, target: Target, token_map: torch.Tensor | None = None
) -> DraftVocabulary:
    """Return the vocabulary of heads; their ``token_map`` holds the target's ids themselves and not offsets."""
    whose, made_for = str(checkpoint), number(checkpoint.config, "vocab_size") or drafted
    require_vocabulary(whose, made_for, target)
    offsets = None if token_map is None else token_map.long() - torch.arange(len(token_map))
    return DraftVocabulary.of(whose, drafted, made_for, target.vocabulary, offsets)
