"""A transformers model fed with explicit positions and masks."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from typing import Any

import attrs
import torch
from transformers import Cache, PreTrainedModel

from specframe import compiled
from specframe.attention import NAME, Maskless, attending
from specframe.attention.choice import WAYS, Choice
from specframe.attention.flex import Blocks
from specframe.attention.masks import masks
from specframe.errors import ModelError, SpecframeWarning
from specframe.protocols import KVStore
from specframe.types import KVShape, Placement

COMPILING_PAYS = 100_000
"""Layers to run, counted once per forward, that take as much longer eagerly as compiling takes: about 15 s, on a CPU."""

SMALL_LAYER = 1_000_000
"""Parameters of a layer up to which compiling shortens it on a CPU; larger ones are bound by their matrices."""


class ModelRunner:
    """Runs a causal language model on explicit positions and masks.

    Args:
        model: a transformers causal language model whose layers all attend (fully or in a sliding window).
        role: "target" or "draft", for observers and errors.

    Raises:
        ModelError: the model takes no positions or no cache, or has layers that cannot forget.
    """

    def __init__(self, model: PreTrainedModel, role: str) -> None:
        self.model, self.role = model, role
        self.config = model.config.get_text_config()
        self.device = next(model.parameters()).device
        self.windows = attention_windows(self.config, role)
        self.context = int(getattr(self.config, "max_position_embeddings", None) or 2**31)
        self.vocabulary = int(self.config.vocab_size)
        takes = inspect.signature(model.forward).parameters
        missing = [name for name in ("position_ids", "past_key_values") if name not in takes]
        if missing:
            raise ModelError(
                f"the {role} ({type(model).__name__}) takes no {' and no '.join(missing)}: expected a model that is told "
                "the position of every token and keeps its keys and values where it is told"
            )
        self._takes_logits_to_keep = "logits_to_keep" in takes
        self._layers_run = 0

    @functools.cached_property
    def kv_shapes(self) -> list[KVShape]:
        """The shape of every layer's keys and values, found by feeding a few tokens.

        Raises:
            ModelError: the model does not go by the masks and positions it is given: its logits change with tokens' slots.
        """
        probe, shuffled = (_Probe(slots) for slots in ([0, 1, 2], [2, 0, 1]))
        in_order, out_of_order = self._probed(probe), self._probed(shuffled)
        off = float((in_order - out_of_order).abs().max() / in_order.std().clamp(min=1e-6))
        if not off < self._tolerance:
            raise ModelError(
                f"the {self.role} ({type(self.model).__name__}) gives other logits when the same tokens have other slots, "
                f"off by {off:.2g} standard deviations: expected a model that attends by the mask and positions it is given"
            )
        return [probe.shapes[layer] for layer in sorted(probe.shapes)]

    @torch.inference_mode()
    def _probed(self, probe: _Probe, layers: compiled.Layers | None = None) -> torch.Tensor:
        """Return the logits (1, 3, V) after three tokens whose keys and values a probe puts in its slots."""
        places_1T = torch.arange(3, device=self.device)[None]
        placement = Placement(places_1T, places_1T, places_1T, torch.tensor([probe.slots], device=self.device))
        return self._call(
            places_1T % self.vocabulary, places_1T, self._masks(placement), probe, 3, layers=layers
        ).float()

    @torch.inference_mode()
    def forward(
        self,
        ids_BT: torch.Tensor,
        placement: Placement,
        store: KVStore,
        keep: int,
        attention: str = "masked",
        layers: compiled.Layers | None = None,
    ) -> torch.Tensor:
        """Feed tokens into a cache and return the logits of the last ``keep`` of them, (B, keep, V).

        Args:
            attention: "packed", where the placement allows it, "flex", "masked", or "auto".
            layers: the model's layers compiled; None: as they are.
        """
        maskless = None
        if (way := self.attention.way(attention, placement)) is not None:
            slots = getattr(store, "slots", placement.key_order_BS.shape[1])
            if way == "packed":
                placement = attrs.evolve(placement, key_order_BS=placement.key_order_BS.new_empty(1, slots))
            maskless = WAYS[way](placement, slots)
        store.expect(placement)
        positions_BT = placement.positions_BT.clamp(0, self.context - 1)
        unread = dict.fromkeys(self.windows, self._nothing)
        shown = self._masks(placement) if maskless is None else self._per_kind(unread)
        return self._call(ids_BT.clamp(max=self.vocabulary - 1), positions_BT, shown, store, keep, maskless, layers)

    @functools.cached_property
    def attention(self) -> Choice:
        """How this model attends."""
        return Choice(self.model, self.role, self.kv_shapes, len(self.windows))

    def layers(self, kind: str) -> compiled.Layers | None:
        """Return what runs the decoder layers in the forward about to start; None: they run as they are.

        Args:
            kind: "eager", "compiled", or "auto": small layers on a CPU are compiled as soon as so many were run that compiling
                them at the start would have paid by now, going by what was measured (benchmarks/README.md).
        """
        if kind == "auto" and self.device.type == "cpu" and self._small_layers:
            self._layers_run += len(self.kv_shapes)
            kind = "compiled" if self._layers_run > COMPILING_PAYS else "eager"
        return self.compiled_layers if kind == "compiled" else None

    @functools.cached_property
    def _small_layers(self) -> bool:
        layers = compiled.decoder_layers(self.model)
        return (
            bool(layers)
            and max(sum(weight.numel() for weight in layer.parameters()) for layer in layers) <= SMALL_LAYER
        )

    @functools.cached_property
    def compiled_layers(self) -> compiled.Layers | None:
        """The compiled layers; None, with a warning, when they cannot be compiled or do not agree with the model."""
        layers, slots = compiled.Layers(self.model), [0, 1, 2]
        expected = self._probed(_Probe(slots))
        try:
            if self.config._attn_implementation != "sdpa" or not layers:
                raise ModelError(f"expected layers with sdpa attention, found {self.config._attn_implementation}")
            off = float((self._probed(_Probe(slots), layers) - expected).abs().max() / expected.std().clamp(min=1e-6))
            if not off < self._tolerance:
                raise ModelError(f"compiled layers are off by {off:.2g} standard deviations of the logits")
        except Exception as error:  # whatever a compiler raises
            reason = str(error).partition("\n")[0]
            warnings.warn(f"the {self.role}'s layers are not compiled: {reason}", SpecframeWarning, stacklevel=2)
            return None
        return layers

    @property
    def _tolerance(self) -> float:
        """What logits may be off by where they should be equal, in their standard deviations."""
        return 0.02 if self.model.dtype == torch.float32 else 0.5

    @functools.cached_property
    def _nothing(self) -> torch.Tensor:
        """A mask that is not looked at: without one, transformers would build its own."""
        return torch.zeros(1, 1, 1, 1, dtype=self.model.dtype, device=self.device)

    def _call(
        self,
        ids_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        masks: Any,
        store: Any,
        keep: int,
        maskless: Maskless | None = None,
        layers: compiled.Layers | None = None,
    ) -> torch.Tensor:
        options = {"logits_to_keep": keep} if self._takes_logits_to_keep else {}
        attention = attending(self.config, maskless, compiled.NAME if layers else NAME)
        compiling = (
            compiled.ints_and_sizes_left_open if layers or isinstance(maskless, Blocks) else contextlib.nullcontext
        )
        with attention, compiling(), layers.over(store) if layers else contextlib.nullcontext(store) as cache:
            output = self.model(
                input_ids=ids_BT,
                attention_mask=masks,
                position_ids=positions_BT,
                past_key_values=cache,
                use_cache=True,
                **options,
            )
        return output.logits[:, -keep:]

    def _masks(self, placement: Placement) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return the additive mask (B, 1, T, S) of each kind of layer, as the model takes them."""
        made = masks(placement, set(self.windows.values()), self.model.dtype)
        return self._per_kind({kind: made[window] for kind, window in self.windows.items()})

    def _per_kind(self, masks: dict[str, torch.Tensor]) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return masks as the model takes them: one per kind of layer, or one for all."""
        return masks if hasattr(self.config, "layer_types") else masks["all"]


def attention_windows(config: Any, role: str) -> dict[str, int | None]:
    """Return the sliding window (None: unlimited) of each kind of attention layer, keyed as the model's masks are.

    Models without ``layer_types`` have one kind, "all".

    Raises:
        ModelError: when a layer keeps a state that cannot forget rejected tokens (recurrent or convolutional layers), or
            attends in chunks.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        if getattr(config, "attention_chunk_size", None) is not None:
            raise ModelError(f"the {role} attends in chunks; expected full or sliding-window attention in every layer")
        return {"all": getattr(config, "sliding_window", None)}
    windows = {"full_attention": None, "sliding_attention": getattr(config, "sliding_window", None)}
    unknown = sorted(set(kinds) - set(windows))
    if unknown:
        raise ModelError(
            f"the {role} has layers of type {', '.join(unknown)}; expected only full_attention and sliding_attention, "
            "whose cache can forget rejected tokens"
        )
    return {kind: windows[kind] for kind in dict.fromkeys(kinds)}


class _Probe(Cache):
    """A cache that hands keys and values back in the order of some slots, and remembers nothing but shapes."""

    def __init__(self, slots: list[int]) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self.shapes: dict[int, KVShape] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.shapes[layer_idx] = KVShape(
            key_states.shape[1], key_states.shape[-1], value_states.shape[-1], key_states.dtype
        )
        return key_states[:, :, self.slots], value_states[:, :, self.slots]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
