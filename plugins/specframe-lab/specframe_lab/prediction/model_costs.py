"""What a forward of a model reads and computes, from the shapes of its weights, which are not loaded."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from specframe_memory.meta_models import hollow_of

from specframe.models.layer_configs import layer_configs
from specframe_lab.prediction.forward_times import Drafting, Load


@attrs.frozen
class ModelCosts:
    """The shapes of a model, as far as its speed depends on them."""

    layers: int
    vocabulary: int
    weights: int
    """Weights that every forward reads, those of experts and of an embedding that is looked up left out."""
    expert_weights: int
    """Weights of all experts."""
    expert_share: float
    """The share of the experts that a token takes; 1 where there are none."""
    cached: int
    """Numbers in the keys and values of one token, over all layers."""
    attention: int
    """Operations of a token's attention for each token it attends to, over all layers."""
    itemsize: int
    """Bytes of a number."""

    def forward(self, rows: int, tokens: int, context: int) -> Load:
        """Return what a forward reads and computes that is fed ``tokens`` tokens a row after ``context`` cached ones.

        Weights are read once, those of an expert if one of the tokens takes it. Keys and values of the context are read by row.
        Logits are written of all tokens.
        """
        fed = rows * tokens
        taken = self.expert_weights * (1 - (1 - self.expert_share) ** fed) if self.expert_weights else 0
        others = rows * (context + tokens) * self.cached + fed * self.vocabulary
        products = self.weights + self.expert_weights * self.expert_share
        operations = fed * (2 * products + self.attention * (context + tokens))
        weights = self.weights + taken
        weight_bytes = weights * self.itemsize
        return Load(fed, weights, weight_bytes + others * self.itemsize, operations, weight_bytes, self.layers)

    def drafting(self, rows: int, length: int, context: int) -> Drafting:
        """Return how this model drafts a chain: by one forward a token.

        The first is fed two tokens, since the last of a draft that was accepted is not in its cache yet.
        """
        fed = (2 if place == 0 else 1 for place in range(length))
        return Drafting(length, length, [self.forward(rows, tokens, context) for tokens in fed])


def costs_of(config: Any, dtype: torch.dtype | None = None) -> ModelCosts:
    """Return the costs of the model of a configuration, which is made without memory for its weights.

    Args:
        config: of a causal language model.
        dtype: that it is run in, or None for the one it was saved in, or else bfloat16.

    Raises:
        ModelError: transformers cannot make the model.
    """
    model: Any = hollow_of(config, dtype)
    text = config.get_text_config()
    experts = sum(weight.numel() for name, weight in model.named_parameters() if ".experts." in name)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    looked_up = 0 if head is not None and head.weight is embedding.weight else embedding.weight.numel()
    layers, own = text.num_hidden_layers, [head_sizes(one) for one in layer_configs(text)]
    own *= layers // len(own)
    return ModelCosts(
        layers=layers,
        vocabulary=text.vocab_size,
        weights=sum(weight.numel() for weight in model.parameters()) - experts - looked_up,
        expert_weights=experts,
        expert_share=taken(text) if experts else 1,
        cached=sum(2 * shared * size for _, shared, size in own),
        attention=sum(4 * heads * size for heads, _, size in own),
        itemsize=model.dtype.itemsize,
    )


def head_sizes(config: Any) -> tuple[int, int, int]:
    """Return the heads of a layer, those of its keys, and their size."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, getattr(config, "num_key_value_heads", None) or heads, size


def taken(config: Any) -> float:
    """Return the share of the experts that a token takes."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next((found for name in names if (found := getattr(config, name, None))), None)
    chosen = getattr(config, "num_experts_per_tok", None)
    return min(1.0, chosen / count) if count and chosen else 1.0
