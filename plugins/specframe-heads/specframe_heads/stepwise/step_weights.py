"""Heads made of checkpoints: Medusa, Hydra, Clover and Clover-2.

Sizes and numbers of heads are those of the tensors. Uploaded configurations are known to state others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch

from specframe.errors import ModelError
from specframe_heads.backbone import configured, filled, rotary_of
from specframe_heads.checkpoint import Checkpoint, number
from specframe_heads.formats.format import Format
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_heads.stepwise import tensor_names
from specframe_heads.stepwise.step_head import HeadLayers, StepHead, sizes
from specframe_heads.stepwise.steps import Clover, Clover2, Hydra, Medusa, Steps
from specframe_heads.target import Target, require_hidden, require_vocabulary
from specframe_heads.tensors import Tensors

CLOVER_PLACES, CLOVER2_PLACES = 3, 5
"""The places that Clover and Clover-2 are trained for. Files of Clover-2 do not say: all but the first share their weights."""


@attrs.frozen(eq=False)
class Read:
    """The tensors of a checkpoint under the names of the modules here."""

    checkpoint: Checkpoint
    tensors: Tensors

    @classmethod
    def of(cls, checkpoint: Checkpoint, rules: tensor_names.Rules, tensors: Tensors) -> Read:
        """Return those that rules give a name."""
        return cls(checkpoint, tensors.renamed(lambda name: tensor_names.own(rules, name)))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor that every such checkpoint has; raise :class:`ModelError` where it is not there."""
        if (found := self.tensors.shape(name)) is None:
            raise ModelError(f"{self.checkpoint} lacks a tensor: expected one that is {name!r} in the head")
        return found

    def count(self, part: str) -> int:
        """Return how many numbered modules a part has."""
        return tensor_names.count(self.tensors, part)

    def made(
        self, target: Target, steps: Steps, vocabulary: DraftVocabulary, backbone: HeadLayers | None = None
    ) -> StepHead:
        """Return a head with these tensors.

        Args:
            target: the model that it is for.
            steps, backbone: made on the device "meta".
            vocabulary: of the logits.
        """
        for module in (steps, backbone):
            if module is not None:
                filled(str(self.checkpoint), module, self.tensors, target)
        return StepHead(steps, vocabulary.to(target.device), backbone)


def medusa(checkpoint: Checkpoint, format: Format, target: Target, tensors: Tensors) -> StepHead:
    """Return Medusa's heads."""
    rules = tensor_names.MEDUSA_VLLM if format.name == "Medusa of vLLM" else tensor_names.MEDUSA
    read = Read.of(checkpoint, rules, tensors)
    size, drafted = read.shape("blocks.0.0.linear.weight")[1], read.shape("lm_heads.0.weight")[0]
    require_hidden(str(checkpoint), size, target)
    count, layers = read.count("blocks"), read.count(r"blocks\.0")
    bias, shared = "blocks.0.0.linear.bias" in read.tensors, read.count("lm_heads") < count
    vocabulary = vocabulary_of(checkpoint, drafted, target, tensors.get("token_map"))
    with torch.device("meta"):
        steps = Medusa(size, drafted, count, layers, bias, shared)
    return read.made(target, steps, vocabulary)


def hydra(checkpoint: Checkpoint, format: Format, target: Target, tensors: Tensors) -> StepHead:
    """Return Hydra's heads; those of Hydra++ with their prefix layer, whose files leave its sizes to the target."""
    whose, read = str(checkpoint), Read.of(checkpoint, tensor_names.HYDRA, tensors)
    read = attrs.evolve(read, tensors=read.tensors.renamed(tensor_names.dense(read.tensors, "blocks").get))
    (size, width), drafted = read.shape("blocks.0.0.linear.weight"), read.shape("lm_heads.0.weight")[0]
    require_hidden(whose, size, target)
    count, layers, depth = read.count("blocks"), read.count(r"blocks\.0"), read.count("layers")
    embedding = target.embedding(whose, size)
    with torch.device("meta"):
        steps = Hydra(size, drafted, count, layers, embedding, grounded=width > size)
    read = attrs.evolve(read, tensors=read.tensors.borrowing("embed_tokens.weight", embedding))
    backbone = layers_of(checkpoint, target, sizes(target), depth, norm=True) if depth else None
    return read.made(target, steps, vocabulary_of(checkpoint, drafted, target), backbone)


def clover(checkpoint: Checkpoint, format: Format, target: Target, tensors: Tensors) -> StepHead:
    """Return Clover's heads."""
    whose, read = str(checkpoint), Read.of(checkpoint, tensor_names.CLOVER, tensors)
    size, config = read.shape("gate.q.weight")[0], checkpoint.config
    require_hidden(whose, size, target)
    lm_head = target.head(whose, size)
    with torch.device("meta"):
        steps = Clover(size, heads_of(checkpoint), read.count("blocks"), lm_head, eps_of(config))
    read = attrs.evolve(read, tensors=read.tensors.borrowing("embed_tokens.weight", lm_head))
    backbone = layers_of(checkpoint, target, config, read.count("layers"), norm=False)
    return read.made(target, steps, vocabulary_of(checkpoint, len(lm_head), target), backbone)


def clover2(checkpoint: Checkpoint, format: Format, target: Target, tensors: Tensors) -> StepHead:
    """Return Clover-2's heads."""
    whose, read = str(checkpoint), Read.of(checkpoint, tensor_names.CLOVER2, tensors)
    size, config = read.shape("gate.q.weight")[0], checkpoint.config
    require_hidden(whose, size, target)
    lm_head, count = target.head(whose, size), number(config, "clover_num_heads") or CLOVER2_PLACES
    if "embed_tokens.weight" not in read.tensors:  # a file may leave it out: it is a copy
        read = attrs.evolve(read, tensors=read.tensors.borrowing("embed_tokens.weight", lm_head))
    embedding = read.tensors["embed_tokens.weight"].to(target.device, target.dtype)
    with torch.device("meta"):
        steps = Clover2(size, heads_of(checkpoint), count, embedding, lm_head, eps_of(config))
    backbone = layers_of(checkpoint, target, config, read.count("layers"), norm=True, enter=True)
    return read.made(target, steps, vocabulary_of(checkpoint, len(lm_head), target), backbone)


def layers_of(
    checkpoint: Checkpoint, target: Target, config: Mapping[str, Any], count: int, norm: bool, enter: bool = False
) -> HeadLayers:
    """Return the layers before the steps, on the device "meta"."""
    given = {key: value for key, value in config.items() if key not in ("layer_types", "sliding_window")}
    given |= {"num_hidden_layers": count, "vocab_size": target.vocabulary, "tie_word_embeddings": False}
    made = configured(str(checkpoint), given, target.context)
    with torch.device("meta"):
        layers = HeadLayers(made, norm, enter)
    layers.rotary_emb = rotary_of(made, target.device)
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
