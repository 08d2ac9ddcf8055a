"""A transformers model as the loop sees it: masks, positions, one KV cache."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import torch
from transformers import Cache, PreTrainedModel

from specframe import compiled
from specframe.attention import NAME, Maskless, attending
from specframe.attention.choice import WAYS, agrees
from specframe.attention.flex import Blocks
from specframe.attention.masks import mask
from specframe.errors import ModelError
from specframe.graphs import Choose, Forward, Recorded, RecordedChain, Recording, chain
from specframe.protocols import KVStore, Layout
from specframe.types import Batch, KVShape, Placement
from specframe.watch import Watch

COMPILING_PAYS = 100_000
"""Layers to run, counted once per forward, that take as much longer eagerly as compiling takes: about 15 s, on a CPU."""

SMALL_LAYER = 1_000_000
"""Parameters of a layer up to which compiling shortens it on a CPU; larger ones are bound by their matrices."""

PREFILL_TOKENS = 4096
"""Prompt tokens read in one forward pass, over all rows, at most."""

LARGEST_MASK = 2**28
"""Bytes that the masks of one forward may take: flex attention takes their place beyond that, or shorter pieces of prompts."""


class ModelRunner:
    """Runs a causal language model on explicit positions and masks.

    Args:
        model: a transformers causal language model whose layers all attend (fully or in a sliding window).
        role: "target" or "draft", for observers and errors.

    Raises:
        ModelError: the model takes no positions or no cache, or has layers that cannot forget.
    """

    def __init__(self, model: PreTrainedModel, role: str) -> None:
        self.model, self.role = model.eval(), role
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
        self._ways: dict[str, bool] = {}

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
        if (way := self.way(attention, placement)) is not None:
            slots = getattr(store, "slots", placement.key_order_BS.shape[1])
            if way == "packed":
                placement = attrs.evolve(placement, key_order_BS=placement.key_order_BS.new_empty(1, slots))
            maskless = WAYS[way](placement, slots)
        store.expect(placement)
        positions_BT = placement.positions_BT.clamp(0, self.context - 1)
        masks = (
            self._masks(placement) if maskless is None else self._per_kind(dict.fromkeys(self.windows, self._nothing))
        )
        return self._call(ids_BT.clamp(max=self.vocabulary - 1), positions_BT, masks, store, keep, maskless, layers)

    def way(self, attention: str, placement: Placement) -> str | None:
        """Return what takes the mask's place in a forward, "packed" or "flex"; None: it has a mask."""
        if placement.used_B is not None and self.packs(attention):
            return "packed"
        if attention == "flex":
            return "flex"
        large = placement.order_BT.numel() * self._mask_bytes(placement.key_order_BS.shape[1]) > LARGEST_MASK
        return "flex" if attention == "auto" and large and self._agrees("flex") else None

    def packs(self, attention: str) -> bool:
        """Return whether tokens whose slots are their places attend packed."""
        return attention == "packed" or (attention == "auto" and self._agrees("packed"))

    def prefill_tokens(self, attention: str, slots: int) -> int:
        """Return how many tokens of prompts, over all rows, are read in one forward that attends to so many slots."""
        tokens = min(PREFILL_TOKENS, LARGEST_MASK // self._mask_bytes(slots))
        if tokens < PREFILL_TOKENS and (attention == "flex" or (attention == "auto" and self._agrees("flex"))):
            return PREFILL_TOKENS
        return tokens

    def check_attention(self, attention: str) -> None:
        """Raise :class:`ModelError` when this model cannot attend as asked on its device, and warn where that is slow."""
        if attention in WAYS and self.config._attn_implementation != "sdpa":
            raise ModelError(
                f"attention {attention!r} takes the place of sdpa, but the {self.role} was loaded with "
                f"{self.config._attn_implementation}: load it with sdpa, or ask for 'masked'"
            )
        if attention == "packed" and not self._agrees("packed"):
            raise ModelError(
                f"attention 'packed' cannot be had for the {self.role} on {self.device.type} in {str(self.model.dtype)[6:]}: "
                "expected CUDA, half precision and a flash kernel for its heads; 'auto' takes it where it can be had"
            )
        if attention == "flex" and self.device.type != "cuda":
            slow = f"attention 'flex' holds all scores on {self.device.type}: it is there to be compared; 'masked' is faster"
            warnings.warn(slow, RuntimeWarning, stacklevel=2)

    def _mask_bytes(self, slots: int) -> int:
        """Return what one token's masks take: one for each kind of layer, and one query's for each that shares its head."""
        queries = getattr(self.config, "num_attention_heads", 1)
        shared = max(queries // shape.heads for shape in self.kv_shapes)
        return slots * self.model.dtype.itemsize * (len(self.windows) + (shared if shared > 1 else 0))

    def _agrees(self, way: str) -> bool:
        """Return whether this model can attend "packed" or "flex" on its device, found out when it is first asked."""
        if way not in self._ways:
            heads = getattr(self.config, "num_attention_heads", 0)
            self._ways[way] = self.config._attn_implementation == "sdpa" and all(
                shape.key_size == shape.value_size
                and agrees(way, self.device, shape.dtype, heads, shape.heads, shape.key_size)
                for shape in set(self.kv_shapes)
            )
        return self._ways[way]

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
            warnings.warn(f"the {self.role}'s layers are not compiled: {reason}", RuntimeWarning, stacklevel=2)
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
        return self._per_kind(
            {kind: mask(placement, window, self.model.dtype) for kind, window in self.windows.items()}
        )

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


class CachedModel:
    """A model with one KV cache, fed through a layout.

    Args:
        attention: "auto", "packed", "flex" or "masked", see :mod:`specframe.attention`.
        record: makes recordings of forwards over a slab; None: none are made.
        layers: "eager", "compiled" or "auto", see :meth:`ModelRunner.layers`.
    """

    def __init__(
        self,
        runner: ModelRunner,
        store: KVStore,
        layout: Layout,
        watch: Watch,
        attention: str = "masked",
        record: Callable[..., Recording] | None = None,
        layers: str = "eager",
    ) -> None:
        self.runner, self.store, self.layout, self._watch = runner, store, layout, watch
        self._attention, self._layers = attention, layers
        runner.check_attention(attention)
        self._forward: Forward = self._execute
        self._chain: RecordedChain | None = None
        if record is not None and (slots := getattr(store, "slots", None)) is not None:
            pack = runner.packs(attention)
            self._forward = Recorded(self._execute, store.rows, slots, record, pack)  # type: ignore[attr-defined]
            if getattr(layout, "static", False):
                self._chain = RecordedChain(self._execute, layout, slots, record, pack)

    def _execute(self, ids_BT: torch.Tensor, placement: Placement, keep: int) -> torch.Tensor:
        layers = self.runner.layers(self._layers)
        return self.runner.forward(ids_BT, placement, self.store, keep, self._attention, layers)

    @property
    def _recordable(self) -> bool:
        """Whether the batch is where recordings expect it."""
        return getattr(self.store, "first", 0) == 0

    def release(self) -> None:
        """Let go of the cache and of what was recorded over it."""
        del self.store, self.layout, self._forward, self._chain

    def feed(self, batch: Batch, ids_BT: torch.Tensor, offset: int, keep: int = 1) -> torch.Tensor:
        """Feed the tokens of every row that end at its length + ``offset``; return logits of the last ``keep``.

        Rows with fewer tokens than that are padded on the left, with any ids.

        Returns:
            (B, keep, V) logits.
        """
        placement = self.place(batch, ids_BT, offset)
        self._watch.forward(self.runner.role, *ids_BT.shape)
        forward = self._forward if self._recordable else self._execute
        return forward(ids_BT, placement, keep)

    def extend(
        self, batch: Batch, ids_BT: torch.Tensor, count: int, choose: Choose, pure: bool = False
    ) -> torch.Tensor:
        """Feed the tokens of every row that end at its length, then, one after the other, those chosen after them.

        Args:
            batch: the rows.
            ids_BT: what is fed first.
            count: tokens to choose; the last of them is not fed.
            choose: (batch, offset, logits_B1V) -> (B, 1), the token after each row's length + ``offset``.
            pure: ``choose`` looks at nothing but logits, lengths and streams, and leaves nothing behind.

        Returns:
            (B, count) ids.
        """
        if pure and self._chain is not None:
            self.follow(batch)
            if self._recordable:
                for width in (ids_BT.shape[1], *[1] * (count - 1)):
                    self._watch.forward(self.runner.role, len(batch), width)
                return self._chain(batch, ids_BT, count, choose)
        return chain(lambda ids_BT, offset: self.feed(batch, ids_BT, offset), batch, ids_BT, count, choose)

    def place(self, batch: Batch, ids_BT: torch.Tensor, offset: int) -> Placement:
        """Return where the tokens about to be fed go, after moving whatever has to move for them."""
        self.follow(batch)
        return self.layout.place(batch, ids_BT.shape[1], offset)

    def follow(self, batch: Batch) -> None:
        """Make the batch's sequences the rows of this cache and its layout."""
        with self._watch.stage("schedule"):
            self.store.arrange(batch.sequences)
        with self._watch.stage("align"):
            self.layout.arrange(batch)

    def read(self, batch: Batch, left: int = 0, unread: int | None = None) -> torch.Tensor | None:
        """Feed the prompts, or the piece of them that the batch says, in chunks.

        Args:
            batch: rows of which nothing is cached but what comes before their last ``unread`` tokens.
            left: tokens at the end of each row that are not fed, if the batch does not leave more.
            unread: None: what the batch says.

        Returns:
            (B, 1, V) logits after the last token fed; None when there was nothing to feed.
        """
        ahead, logits = batch.unread if unread is None else unread, None
        left = max(left, batch.left)
        chunk = max(1, self.runner.prefill_tokens(self._attention, batch.longest) // len(batch))
        while ahead > left:
            step = min(ahead - left, chunk)
            ahead -= step
            logits = self.feed(batch, batch.last_tokens(step, -ahead), -ahead)
        return logits

    def keep(self, batch: Batch, kept: np.ndarray) -> None:
        """Forget all but the first ``kept[i]`` tokens of row i."""
        with self._watch.stage("align"):
            self.layout.keep(batch, kept)
