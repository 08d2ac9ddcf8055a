"""From a checkpoint to a block head that fits a target."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import attrs
import torch
from torch import nn

from specframe.errors import ModelError
from specframe_heads.backbone import configured, made, rotary_of
from specframe_heads.blocks.markov import KINDS, ConfidenceHead, MarkovHead
from specframe_heads.blocks.net import BlockReach, DFlash
from specframe_heads.checkpoint import Checkpoint, nested, number
from specframe_heads.formats.format import Format
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_heads.target import Target, require_vocabulary
from specframe_heads.tensors import Tensors, require_weights

BOTH_WAYS = BlockReach()
CONFIDENCE = re.compile(r"confidence_head\.")
"""The beginning of the names of a confidence head's tensors."""


@attrs.frozen
class Facts:
    """The facts of one checkpoint, whatever its format calls them."""

    layers: Mapping[str, Any]
    """The configuration of its layers, as transformers has it."""
    block: int
    """Slots of the block it was trained with."""
    mask: int
    """The token of all slots but the first."""
    anchored: bool
    """Whether the first slot predicts, too: slot k the token after it. If not, slot k predicts its own token."""
    reach: BlockReach = BOTH_WAYS
    """The tokens that the block's queries see."""
    rank: int = 0
    """Rank of the Markov head, or 0 if there is none."""
    kind: str = "vanilla"
    confident: bool = False
    """Whether there is a confidence head."""
    confident_of_markov: bool = False
    """Whether the confidence head looks at the token before, as the Markov head embeds it."""


@attrs.frozen(eq=False)
class BlockHead:
    """A block head and the parts of the target that it borrows, on the target's device and in its precision."""

    facts: Facts
    net: DFlash
    embed: Callable[[torch.Tensor], torch.Tensor]
    """Returns the states of token ids."""
    head: Callable[[torch.Tensor], torch.Tensor]
    """Returns logits over the head's vocabulary."""
    vocabulary: DraftVocabulary
    markov: MarkovHead | None = None
    confidence: ConfidenceHead | None = None

    def fuse(self, states_BTD: torch.Tensor) -> torch.Tensor:
        """Return the context (B, T, H) of the hidden states of its layers side by side."""
        return self.net.fused(states_BTD)

    def chances(self, states_BKH: torch.Tensor, before_BK: torch.Tensor) -> torch.Tensor:
        """Return the predicted chance of each slot's token, (B, K), from the slots' states and the token before each slot's."""
        assert self.confidence is not None
        if self.facts.confident_of_markov:
            assert self.markov is not None
            states_BKH = torch.cat([states_BKH, self.markov.markov_w1(before_BK)], dim=-1)
        return self.confidence(states_BKH)

    @property
    def longest(self) -> int:
        """The most tokens of one draft."""
        return self.facts.block - (not self.facts.anchored)


def speculators(checkpoint: Checkpoint, form: Format, target: Target, tensors: Tensors) -> BlockHead:
    """Return the head of a dflash or dspark checkpoint of ``speculators``."""
    config, spark = checkpoint.config, checkpoint.config["speculators_model_type"] == "dspark"
    rank = int(config.get("markov_rank", 256)) if spark else 0
    facts = Facts(
        layers=nested(config, "transformer_layer_config"),
        block=required(checkpoint, "block_size", config.get("block_size", 8)),
        mask=required(checkpoint, "mask_token_id", config.get("mask_token_id")),
        anchored=bool(config.get("sample_from_anchor", spark)),
        reach=BlockReach(sliding_causal=not config.get("sliding_window_non_causal", False), from_anchor=True),
        rank=rank,
        kind=str(config.get("markov_head_type", "vanilla")),
        confident=spark and bool(config.get("enable_confidence_head", True)),
        confident_of_markov=bool(config.get("confidence_head_with_markov", True)),
    )
    return assembled(checkpoint, form, target, facts, tensors)


def z_lab(checkpoint: Checkpoint, form: Format, target: Target, tensors: Tensors) -> BlockHead:
    """Return the head of a DFlash checkpoint of z-lab, whose layers see the block in both directions, those with a window too.

    ``causal``, and ``use_swa`` with ``swa_window_size``, which ModelOpt writes, are about all layers.
    """
    config, own = checkpoint.config, nested(checkpoint.config, "dflash_config")
    causal = next((bool(one) for one in (config.get("is_causal"), own.get("causal")) if one is not None), False)
    layers = config
    if own.get("use_swa"):
        window = required(
            checkpoint, "dflash_config.swa_window_size", own.get("swa_window_size", config.get("sliding_window"))
        )
        count = required(checkpoint, "num_hidden_layers", config.get("num_hidden_layers"))
        layers = {
            **config,
            "use_sliding_window": True,
            "sliding_window": window,
            "layer_types": ["sliding_attention"] * count,
        }
    facts = Facts(
        layers=layers,
        block=required(checkpoint, "block_size", config.get("block_size", own.get("block_size"))),
        mask=required(checkpoint, "dflash_config.mask_token_id", own.get("mask_token_id")),
        anchored=False,
        reach=BlockReach(causal, causal),
    )
    return assembled(checkpoint, form, target, facts, tensors)


def deepspec(checkpoint: Checkpoint, form: Format, target: Target, tensors: Tensors) -> BlockHead:
    """Return the head of a checkpoint of DeepSpec: DSpark, and its DFlash, which has neither of the further heads."""
    config = checkpoint.config
    facts = Facts(
        layers=config,
        block=required(checkpoint, "block_size", config.get("block_size")),
        mask=required(checkpoint, "mask_token_id", config.get("mask_token_id")),
        anchored=True,
        rank=int(config.get("markov_rank", 0)),
        kind=str(config.get("markov_head_type", "vanilla")),
        confident=bool(config.get("enable_confidence_head", False)),
        confident_of_markov=bool(config.get("confidence_head_with_markov", False)),
    )
    return assembled(checkpoint, form, target, facts, tensors)


def required(checkpoint: Checkpoint, key: str, found: Any) -> int:
    """Return a whole number that a configuration has to have."""
    if number({key: found}, key) is None or found < 0:
        raise ModelError(f"the config.json of {checkpoint}: expected a whole number {key}, got {found!r}")
    return int(found)


def assembled(checkpoint: Checkpoint, form: Format, target: Target, facts: Facts, tensors: Tensors) -> BlockHead:
    """Return the head that a checkpoint's facts and tensors make."""
    config, count = layer_config(checkpoint, facts), len(form.ids(checkpoint, target.layers))
    if not facts.confident:
        tensors.ledger.leave(CONFIDENCE.match, "the configuration has no confidence head")
    require_features(checkpoint, tensors, count, target)
    require_vocabulary(str(checkpoint), int(config.vocab_size), target)
    net = made(str(checkpoint), lambda: DFlash(config, target.hidden * count), tensors, target)
    net.rotary_emb = rotary_of(config, target.device)
    embed = own_embedding(checkpoint, tensors, target, config.hidden_size)
    head = own_head(checkpoint, tensors, target, config.hidden_size)
    drafted, own = len(head.weight), "lm_head.weight" in tensors
    made_for = int(config.vocab_size) if own else drafted
    vocabulary = DraftVocabulary.of(str(checkpoint), drafted, made_for, target.vocabulary, tensors.get("d2t"))
    if facts.mask >= embed.weight.shape[0]:
        raise ModelError(
            f"{checkpoint} has mask_token_id {facts.mask}: expected an id that is embedded, below {embed.weight.shape[0]}"
        )
    markov = (
        markov_head(checkpoint, tensors, target, facts, config.hidden_size, len(head.weight)) if facts.rank else None
    )
    confidence = None
    if facts.confident:
        width = config.hidden_size + facts.rank * facts.confident_of_markov
        confidence = made(str(checkpoint), lambda: ConfidenceHead(width), tensors.under("confidence_head."), target)
    return BlockHead(facts, net, embed, head, vocabulary.to(target.device), markov, confidence)


def layer_config(checkpoint: Checkpoint, facts: Facts) -> Any:
    """Return the configuration of the backbone's layers, which are those of Qwen3."""
    if (kind := facts.layers.get("model_type", "qwen3")) != "qwen3":
        raise ModelError(f"{checkpoint} has layers of {kind!r}: expected those of 'qwen3', as DFlash and DSpark have")
    return configured(str(checkpoint), {"model_type": "qwen3", **facts.layers})


def require_features(checkpoint: Checkpoint, tensors: Tensors, count: int, target: Target) -> None:
    """Raise :class:`ModelError` unless ``fc`` takes the target's features."""
    if (shape := tensors.shape("fc.weight")) is not None and shape[-1] != target.hidden * count:
        raise ModelError(
            f"{checkpoint} is a head for another target: expected {count} hidden states of size "
            f"{shape[-1] // count}, got {target.hidden}"
        )


def markov_head(
    checkpoint: Checkpoint, tensors: Tensors, target: Target, facts: Facts, hidden: int, drafted: int
) -> MarkovHead:
    """Return the Markov head; the ids of the token before are the target's."""
    if facts.kind not in KINDS:
        raise ModelError(f"{checkpoint} has a Markov head of kind {facts.kind!r}: expected one of {', '.join(KINDS)}")
    known = tensors.shape("markov_head.markov_w1.weight")
    rows = drafted if known is None else known[0]
    found: MarkovHead = made(
        str(checkpoint),
        lambda: MarkovHead(rows, drafted, facts.rank, hidden, facts.kind),
        tensors.under("markov_head."),
        target,
    )
    return found


def own_embedding(checkpoint: Checkpoint, tensors: Tensors, target: Target, size: int) -> nn.Embedding:
    """Return the checkpoint's embedding, or the target's, with whatever else the target's does."""
    weight = tensors.get("embed_tokens.weight")
    if weight is None:
        target.embedding(str(checkpoint), size)
        return cast(nn.Embedding, target.model.get_input_embeddings())
    if weight.shape[-1] != size or len(weight) < target.vocabulary:
        raise ModelError(
            f"the tensor 'embed_tokens.weight' of {checkpoint}: expected shape {(target.vocabulary, size)}, got "
            f"{tuple(weight.shape)}"
        )
    require_weights(str(checkpoint), "embed_tokens.weight", weight)
    return nn.Embedding.from_pretrained(weight.to(target.device, target.dtype))


def own_head(checkpoint: Checkpoint, tensors: Tensors, target: Target, size: int) -> nn.Linear:
    """Return the checkpoint's head, or the target's."""
    shape = tensors.shape("lm_head.weight")
    if shape is None:
        target.head(str(checkpoint), size)
        return cast(nn.Linear, target.model.get_output_embeddings())
    own: nn.Linear = made(
        str(checkpoint), lambda: nn.Linear(size, shape[0], bias=False), tensors.under("lm_head."), target
    )
    return own
