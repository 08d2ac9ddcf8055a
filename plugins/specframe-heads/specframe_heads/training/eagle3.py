"""Training of EAGLE-3 (Li et al. 2025, arXiv 2503.01840), with its training-time test.

A draft begins after every token t, and each of its steps sees what it would see in decoding: the true pairs up to t, and its own
states for the tokens it drafted. So that all drafts of a text are trained at once, step k of the draft after t attends to the first
step's keys up to place t, and to its own of the steps 1 to k.

Tensor names: B texts, T pairs, H heads, D features of a head or a state.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

from specframe_heads.backbone import configured, norm_of, rotary_of
from specframe_heads.eagle.eagle_layers import Eagle3, EagleHead, Fusion, Norms
from specframe_heads.stepwise.step_head import sizes
from specframe_heads.stepwise.writing import of_speculators, write
from specframe_heads.target import Target
from specframe_heads.training.learner import WRITTEN, Learner, soft_cross_entropy
from specframe_heads.training.training_batches import Lesson

DECAY = 0.8
"""The weight of each step, times that of the step before: the authors'."""

GROWN = 0.6
"""The part of a training after which all steps are trained. The authors train all from the beginning, at several times the cost."""


KeysAndValues = tuple[torch.Tensor, torch.Tensor]
"""Those of one step in one layer, (B, H, T, D) each."""


class Eagle3Learner(Learner):
    """EAGLE-3.

    Args:
        target: the model that it is for.
        places: steps of the training-time test.
        ids: the target's ids that the head knows, in ascending order, or None for all.
        layers: of its transformer, or None for one, as the authors' heads have.
    """

    def __init__(self, target: Target, places: int, ids: torch.Tensor | None = None, layers: int | None = None) -> None:
        super().__init__(target, places)
        self._config = sizes(target) | {"num_hidden_layers": layers or 1}
        config = configured("the head", self._config)
        self.layers_taken: tuple[int, ...] = (2, target.layers // 2, target.layers - 1)
        self._ids = (torch.arange(target.vocabulary) if ids is None else ids).to(target.device)
        self.fusion = Fusion(config, target.hidden, len(self.layers_taken), Norms())
        self.backbone = Eagle3(config, Norms())
        self.backbone.rotary_emb = rotary_of(config, target.device)
        self.backbone.embed_tokens.weight = torch.nn.Parameter(target.embedding("the head", target.hidden), False)
        self.norm: Any = norm_of(config)
        self.lm_head = torch.nn.Linear(target.hidden, len(self._ids), bias=False)
        self._begin()

    @classmethod
    def like(cls, target: Target, head: EagleHead, layers: tuple[int, ...], places: int) -> Eagle3Learner | None:
        """Return a learner with copies of the head's modules in float32, whatever their sizes and norms."""
        if not isinstance(head.backbone, Eagle3):
            return None
        made = cls(target, places, head.vocabulary.ids)
        made.layers_taken, made._config = layers, head.backbone.config.to_dict()
        embedding = head.backbone.embed_tokens
        for name in ("fusion", "backbone", "norm", "lm_head"):
            module = copy.deepcopy(getattr(head, name), {id(embedding): torch.nn.Identity()})
            setattr(made, name, module.float().requires_grad_(True))
        made.backbone.embed_tokens = embedding.requires_grad_(False)
        return made

    @torch.no_grad()
    def _begin(self) -> None:
        """Set the weights that training starts from: the target's language head and norm, and its last feature as it is."""
        self.lm_head.weight.copy_(self.target.head("the head", self.target.hidden)[self._ids])
        final = getattr(getattr(self.target.model.get_decoder(), "norm", None), "weight", None)
        if final is not None:
            self.norm.weight.copy_(final)
        self.fusion.fc.weight.mul_(0.1)
        self.fusion.fc.weight[:, -self.target.hidden :] += torch.eye(self.target.hidden)

    @property
    def layers(self) -> tuple[int, ...]:
        """The hidden states of a low, the middle and a high layer."""
        return self.layers_taken

    def places_at(self, done: float) -> int:
        """Return one place at first, and all once :data:`GROWN` of the steps are done: later steps build on a good first one."""
        return self.places if self.trained else min(self.places, 1 + int(self.places * done / GROWN))

    def predicted(self, lesson: Lesson, places: int) -> list[torch.Tensor]:
        """Return the logits of each place."""
        features_BTD = self.fusion(torch.cat([lesson.hidden[one][:, :-1] for one in self.layers], dim=-1))
        keys: list[list[KeysAndValues]] = [[] for _ in self.backbone.layers]
        found = list[torch.Tensor]()
        for place in range(places):
            embeds_BTD = self.backbone.embed_tokens(lesson.ahead(lesson.ids_BT, place))
            states_BTD = self._step(place, embeds_BTD, features_BTD, keys)
            normed_BTD = self.norm(states_BTD)
            features_BTD = normed_BTD if self.backbone.norms.output else states_BTD
            found.append(self.lm_head(normed_BTD))
        return found

    def _step(
        self,
        place: int,
        embeds_BTD: torch.Tensor,
        features_BTD: torch.Tensor,
        keys: list[list[KeysAndValues]],
    ) -> torch.Tensor:
        """Return the states after step ``place`` of the draft after each token; ``keys`` of each layer grow by the step's."""
        first: Any = self.backbone.layers[0]
        normed_BTD = first.hidden_norm(features_BTD)
        residual_BTD = normed_BTD if self.backbone.norms.before_residual else features_BTD
        both_BTD = torch.cat([first.input_layernorm(embeds_BTD), normed_BTD], dim=-1)
        positions_1T = torch.arange(place, place + both_BTD.shape[1], device=both_BTD.device)[None]
        rotary = self.backbone.rotary_emb(both_BTD, positions_1T)
        states_BTD, normed_BTD = residual_BTD, both_BTD
        layers: Any = self.backbone.layers
        for number, layer in enumerate(layers):
            if number:
                normed_BTD = layer.input_layernorm(states_BTD)
            states_BTD = states_BTD + attended(layer.self_attn, normed_BTD, rotary, keys[number])
            states_BTD = states_BTD + layer.mlp(layer.post_attention_layernorm(states_BTD))
        return states_BTD

    def loss(self, lesson: Lesson, places: int) -> torch.Tensor:
        """Return the cross entropy of all steps with the target's distributions."""
        total = lesson.logits_BTV.new_zeros(())
        for place, logits_BTV in enumerate(self.predicted(lesson, places)):
            taught_BTV = lesson.ahead(lesson.logits_BTV, place)[..., self._ids]
            total = total + DECAY**place * soft_cross_entropy(logits_BTV, taught_BTV, lesson.counts(place))
        return total

    def save(self, folder: Path) -> None:
        """Write the head in the format of `speculators`; the embedding is left out where it is the target's."""
        parts = {"norm.weight": self.norm.weight, "lm_head.weight": self.lm_head.weight, **self.fusion.state_dict()}
        targets: Any = self.target.model.get_input_embeddings()
        if (own := self.backbone.embed_tokens.weight).data_ptr() != targets.weight.data_ptr():
            parts["embed_tokens.weight"] = own
        parts |= {f"layers.{name}": one for name, one in self.backbone.layers.state_dict().items()}
        if len(self._ids) < self.target.vocabulary:
            parts["d2t"] = self._ids.cpu() - torch.arange(len(self._ids))
            parts["t2d"] = torch.zeros(self.target.vocabulary, dtype=torch.bool).index_fill_(0, self._ids.cpu(), True)
        norms = self.backbone.norms
        config = of_speculators(
            "eagle3",
            "Eagle3DraftModel",
            self.target,
            self._config,
            self.places,
            verifier_accept_k=1,
            accept_tolerance=0.0,
        )
        config |= {
            "draft_vocab_size": len(self._ids),
            "target_hidden_size": self.target.hidden,
            "norm_before_residual": norms.before_residual,
            "norm_before_fc": norms.before_fc,
            "fc_norm": norms.each,
            "norm_output": norms.output,
            "eagle_aux_hidden_state_layer_ids": list(self.layers),
        }
        write(folder, config, {name: one.detach() for name, one in parts.items()}, WRITTEN)


def attended(
    attention: Any,
    states_BTD: torch.Tensor,
    rotary: tuple[torch.Tensor, torch.Tensor],
    keys: list[KeysAndValues],
) -> torch.Tensor:
    """Return the attention of one step of the draft after each token, (B, T, D).

    Args:
        attention: a layer's, of a kind in :data:`specframe_heads.backbone.FAMILIES`.
        states_BTD: its input.
        rotary: cosines and sines of the step's positions.
        keys: those of the steps before in this layer; this step's are added.
    """
    q, k, v = (
        made(states_BTD).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        for made in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "q_norm"):  # layers of the Qwen3 kind
        q, k = attention.q_norm(q), attention.k_norm(k)
    q, k = apply_rotary_pos_emb(q, k, *rotary)
    groups = attention.num_key_value_groups
    keys.append((repeat_kv(k, groups), repeat_kv(v, groups)))
    scaled = q * attention.scaling
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    true_BHTT = (scaled @ keys[0][0].transpose(2, 3)).masked_fill(later, float("-inf"))
    own_BHTK = [(scaled * mine).sum(-1, keepdim=True) for mine, _ in keys[1:]]
    shares = torch.cat([true_BHTT, *own_BHTK], dim=-1).float().softmax(-1).to(q.dtype)
    out = shares[..., : q.shape[2]] @ keys[0][1]
    for step, (_, values) in enumerate(keys[1:]):
        out = out + shares[..., q.shape[2] + step, None] * values
    return attention.o_proj(out.transpose(1, 2).flatten(2))
