"""A transformers model fed with explicit positions and masks."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs
import torch
from transformers import DynamicCache, PreTrainedModel

from specframe.contracts.cache import KVShape, KVStore, Placement
from specframe.contracts.drafts import Block, Scores
from specframe.contracts.roles import Attend, AttentionBackend
from specframe.errors import ModelError, SpecframeError, SpecframeWarning, sentence
from specframe.forward import compiled
from specframe.forward.attention.choice import Attention, Choice
from specframe.forward.attention.interface import Watched
from specframe.forward.attention.masks import masks
from specframe.forward.hidden import Forwards, Taps
from specframe.forward.ongoing import Ongoing, own, running, using
from specframe.forward.probing import Reordered, Scratch, narrowed, uneven
from specframe.forward.rope import Rope
from specframe.forward.views import StoreCache, Unwritten
from specframe.values import unwrapped

COMPILING_PAYS = 100_000
"""Layers to run, counted once per forward, that take as much longer eagerly as compiling takes: about 15 s, on a CPU."""

NOTHING: Mapping[Any, Any] = MappingProxyType({})

PROBED_PAGE = 16
"""Slots of a page when a backend is tried that reads nothing else."""

LARGEST_PROBE = 2048
"""Slots per row that a model is tried on without masks, at most: 100 MB for one layer of a large model."""

IN_ORDER, SHUFFLED = [0, 1, 2, 3], [2, 0, 3, 1]
"""The slots of the tokens that a model is tried on: more of them than a window of two."""

SMALL_LAYER = 1_000_000
"""Parameters of a layer up to which compiling shortens it on a CPU; larger ones are bound by their matrices."""


_faults: weakref.WeakKeyDictionary[PreTrainedModel, dict[Any, str | None]] = weakref.WeakKeyDictionary()
"""Results of self-tests in :meth:`ModelRunner.without_masks` of a model, by attention backend, device and dtype."""


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
        with using(self.config):
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
        if (attends := own(self.config, "_attn_implementation") or "").startswith(("flex", "flash")):
            raise ModelError(
                f"{self} is set to {attends}, which takes no mask tensor: expected sdpa or eager, so load it with "
                "attn_implementation='sdpa', or call its set_attn_implementation('sdpa')"
            )
        self._takes_logits_to_keep = "logits_to_keep" in takes
        self._layers_run = 0
        self._dense = False
        self.rope = Rope(model, self.context, str(self))

    def __str__(self) -> str:
        return f"the {self.role} ({type(self.model).__name__})"

    @property
    def kv_shapes(self) -> list[KVShape]:
        """The shape of every layer's keys and values, found by feeding a few tokens.

        Raises:
            ModelError: the model cannot be fed so, its logits are not finite, it does not go by the masks and positions it is
                given, it attends in another way when it makes its masks itself, or autocast has it computed in another precision.
        """
        kind, own = self.device.type, self.model.dtype
        if torch.is_autocast_enabled(kind) and (cast := torch.get_autocast_dtype(kind)) != own:
            raise ModelError(
                f"{self} is in {str(own)[6:]} and torch.autocast is on for {str(cast)[6:]}: expected one precision, so load the "
                "model in that, or decode outside of autocast"
            )
        return self._kv_shapes

    @functools.cached_property
    def _kv_shapes(self) -> list[KVShape]:
        probe = Reordered(IN_ORDER)
        logits_BTV = self._tried(probe)
        if not logits_BTV.isfinite().all():
            raise ModelError(
                f"the logits of {self} are not finite after four tokens: expected weights without NaN, in a precision that holds "
                "their products"
            )
        self._require_equal(
            self._tried(Reordered(SHUFFLED)),
            logits_BTV,
            "when the same tokens have other slots",
            "a model that attends by the mask and positions it is given",
        )
        self._require_own_masks(None, logits_BTV)
        if any(window is not None for window in self.windows.values()):
            self._require_own_masks(2, self._tried(Reordered(IN_ORDER), window=2))
        shapes = [probe.shapes[layer] for layer in sorted(probe.shapes)]
        return [attrs.evolve(one, device=None) if one.device == self.device else one for one in shapes]

    @property
    def spread(self) -> bool:
        """Whether layers are on other devices than the model's first weights."""
        return any(shape.device is not None for shape in self.kv_shapes)

    def _require_own_masks(self, window: int | None, wanted: torch.Tensor) -> None:
        self._require_equal(
            self._alone(window),
            wanted,
            "when it makes its masks itself",
            "a causal language model that keeps to the sliding window of its configuration, if there is one",
        )

    def _require_equal(self, found: torch.Tensor, wanted: torch.Tensor, when: str, expected: str) -> None:
        if not (off := distance(found, wanted)) < self._tolerance:
            raise ModelError(
                f"{self} gives other logits {when}, off by {off:.2g} standard deviations: expected {expected}"
            )

    def _tried(self, probe: Reordered, window: int | None = None) -> torch.Tensor:
        """Return the logits of :meth:`_probed`; keys and values are made contiguous from now on where a model needs that."""
        try:
            return self._probed(probe, window=window)
        except (SpecframeError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever a model raises
            if isinstance(error, RuntimeError) and not self._dense:
                self._dense = True
                return self._tried(probe, window)
            raise ModelError(
                f"{self} cannot be told the positions and masks of its tokens: it raises {type(error).__name__} "
                f"({sentence(error)})"
            ) from error

    @torch.inference_mode()
    def _probed(
        self, probe: Reordered, layers: compiled.Layers | None = None, window: int | None = None
    ) -> torch.Tensor:
        """Return the logits (2, 4, V) after four tokens of two rows whose keys and values a probe puts in its slots.

        Args:
            probe: the cache.
            layers: the model's layers compiled; None: as they are.
            window: in the place of every sliding window; None: as they are.
        """
        places_BT = self._places
        placement = Placement(places_BT, places_BT, places_BT, torch.tensor([probe.slots], device=self.device))
        shown = self._masks(placement, window)
        forwards = layers.forwards if layers else NOTHING
        compiles = layers is not None
        return self._call(
            places_BT % self.vocabulary,
            places_BT,
            shown,
            probe,
            len(probe.slots),
            len(IN_ORDER),
            compiles=compiles,
            forwards=forwards,
        ).float()

    @functools.cached_property
    def _places(self) -> torch.Tensor:
        """The places of four tokens in two rows, which a store strides in another way than one."""
        return torch.arange(len(IN_ORDER), device=self.device).repeat(2, 1)

    @torch.inference_mode()
    def _alone(self, window: int | None) -> torch.Tensor:
        """Return the logits (2, 4, V) after four tokens for which the model makes its own masks.

        They are fed as ``generate`` feeds them, all but the last in one pass over an empty cache: some models make other masks
        without a cache, some none at all for a prompt within their window, and some treat a token that is fed alone in a way of
        their own.

        Args:
            window: in the place of every sliding window; None: as they are.
        """
        places_BT, logits = self._places, []
        try:
            with narrowed(self.config, window):
                cache = DynamicCache(config=self.config)
                for fed_BT in places_BT.tensor_split([-1], dim=1):
                    ids_BT = fed_BT % self.vocabulary
                    output = self.model(input_ids=ids_BT, position_ids=fed_BT, past_key_values=cache, use_cache=True)
                    logits.append(output.logits.float())
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a model raises
            raise ModelError(
                f"{self} cannot read four tokens: it raises {type(error).__name__} ({sentence(error)})"
            ) from error
        return torch.cat(logits, dim=1)

    @torch.inference_mode()
    def without_masks(self, backend: AttentionBackend) -> str | None:
        """Return why an attention backend cannot take the place of this model's masks; None: it can.

        Rows of unequal length are fed a few tokens over slots that hold noise, once with masks and once without. A model is tried
        the first time that this is asked.
        """
        if self.spread:
            return "its layers are on several devices"
        made, known = unwrapped(backend), _faults.setdefault(self.model, {})
        key = (type(made), repr(vars(made) if hasattr(made, "__dict__") else made), self.device, self.model.dtype)
        if key not in known:
            known[key] = self._fault(backend)
        return known[key]

    def _fault(self, backend: AttentionBackend) -> str | None:
        narrowest = min((window for window in self.windows.values() if window is not None), default=None)
        slots = min(self.context, LARGEST_PROBE)
        placement = uneven(narrowest, slots, self.device)
        ids_BT, extent = placement.positions_BT % self.vocabulary, placement.key_order_BS.shape[1]
        plan, page = backend.plan(placement), None if "dense" in backend.offers else PROBED_PAGE
        assert plan is not None
        attends, kernels = Watched(plan), "compiled" in backend.offers
        with_masks, without = (
            self._call(ids_BT, placement.positions_BT, shown, store, extent, 4, instead, kernels=kernels)[
                placement.order_BT >= 0
            ]
            for shown, store, instead in (
                (self._masks(placement), Scratch(placement), None),
                (self._unread, Scratch(placement, page), attends),
            )
        )
        if not (off := distance(without.float(), with_masks.float())) < self._tolerance:
            return f"its logits are off by {off:.2g} standard deviations without masks"
        return self._wrong_window(attends.windows)

    def _wrong_window(self, seen: list[int | None]) -> str | None:
        """Describe how the sliding windows that layers ask for differ from the configuration's."""
        kinds = getattr(self.config, "layer_types", None)
        told = [self.windows[kind] for kind in kinds] if kinds else [self.windows["all"]] * len(seen)
        told = told[: len(self.kv_shapes)]  # the configuration may be of a model with more layers
        bounded = [[window if window and window < self.context else None for window in given] for given in (seen, told)]
        if bounded[0] == bounded[1]:
            return None
        return "its layers do not tell attention their sliding windows"

    @torch.inference_mode()
    def forward(
        self,
        block: Block,
        placement: Placement,
        store: KVStore,
        *,
        keep: int,
        hidden: tuple[int, ...] = (),
        attention: Choice | None = None,
        layers: compiled.Layers | None = None,
        extra: Mapping[str, Any] = NOTHING,
    ) -> Scores:
        """Feed a block into a cache and return the scores: logits of its last ``keep`` tokens, (B, keep, V).

        Args:
            hidden: the hidden states to return, as transformers numbers them.
            attention: chooses the attention backend; None: mask tensors.
            layers: the model's layers compiled; None: as they are.
            extra: further arguments of the model's ``forward``.
        """
        plan, kernels = None, False
        if attention is not None and (backend := attention.way(placement)) is not None:
            kernels = "compiled" in backend.offers
            if "lengths" in backend.offers and store.slots is not None:
                placement = attrs.evolve(placement, key_order_BS=placement.key_order_BS.new_empty(1, store.slots))
            plan = backend.plan(placement)
        store.expect(placement)
        positions_BT = placement.positions_BT.clamp(0, self.rope.last_position)
        shown = self._masks(placement) if plan is None else self._unread
        ids_BT = block.ids_BT.clamp(max=self.vocabulary - 1)
        forwards = {**self.rope.forwards, **layers.forwards} if layers else self.rope.forwards
        found: Mapping[int, torch.Tensor] = {}
        if hidden:
            forwards, found = self.taps.placed(hidden, forwards)
        compiles, extent = layers is not None, placement.key_order_BS.shape[1]
        extra = {**block.extra, **extra}
        logits_BTV = self._call(
            ids_BT, positions_BT, shown, store, extent, keep, plan, compiles, forwards, extra, kernels
        )
        return Scores(logits_BTV, found)

    @functools.cached_property
    def taps(self) -> Taps:
        """The places at which hidden states are taken."""
        return Taps(self.model, str(self))

    @functools.cached_property
    def attention(self) -> Attention:
        """What is known of this model's attention."""
        return Attention(self.model, str(self), self.kv_shapes, self.windows, self.without_masks)

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
        layers = compiled.Layers(self.model)
        expected = self._probed(Reordered(IN_ORDER))
        try:
            if (attends := own(self.config, "_attn_implementation")) != "sdpa" or not layers:
                raise ModelError(f"expected layers with sdpa attention, found {attends}")
            if not (off := distance(self._probed(Reordered(IN_ORDER), layers), expected)) < self._tolerance:
                raise ModelError(f"compiled layers are off by {off:.2g} standard deviations of the logits")
        except Exception as error:  # whatever a compiler raises
            reason = str(error).partition("\n")[0]
            warnings.warn(f"the {self.role}'s layers are not compiled: {reason}", SpecframeWarning, stacklevel=2)
            return None
        return layers

    @property
    def _tolerance(self) -> float:
        """Largest tolerated difference of logits that should be equal, in standard deviations of the logits."""
        return 0.02 if self.model.dtype == torch.float32 else 0.5

    @functools.cached_property
    def _unread(self) -> torch.Tensor | dict[str, torch.Tensor]:
        """Masks that are not looked at: without any, transformers would build its own."""
        nothing = torch.zeros(1, 1, 1, 1, dtype=self.model.dtype, device=self.device)
        return self._per_kind(dict.fromkeys(self.windows, nothing))

    def _call(
        self,
        ids_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        masks: Any,
        store: Any,
        extent: int,
        keep: int,
        plan: Attend | None = None,
        compiles: bool = False,
        forwards: Forwards = NOTHING,
        extra: Mapping[str, Any] = NOTHING,
        kernels: bool = False,
    ) -> torch.Tensor:
        options = {"logits_to_keep": keep} if self._takes_logits_to_keep else {}
        compiling = compiled.ints_and_sizes_left_open if compiles or kernels else contextlib.nullcontext
        cache = StoreCache(store, extent, self._dense)
        shown = Unwritten(extent) if compiles else cache
        with compiling(), running(self.config, Ongoing(plan, cache, forwards)):
            output = self.model(
                input_ids=ids_BT,
                attention_mask=masks,
                position_ids=positions_BT,
                past_key_values=shown,
                use_cache=True,
                **options,
                **extra,
            )
        return output.logits[:, -keep:]

    def _masks(self, placement: Placement, window: int | None = None) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return the additive mask (B, 1, T, S) of each kind of layer, as the model takes them.

        ``window``, if there is one, is in the place of every sliding window.
        """
        windows = {kind: own and (window or own) for kind, own in self.windows.items()}
        made = masks(placement, set(windows.values()), self.model.dtype)
        return self._per_kind({kind: made[own] for kind, own in windows.items()})

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


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference of logits in standard deviations of the expected logits; NaN if a logit is not finite."""
    return float((found - wanted).abs().max() / wanted.std().clamp(min=1e-6))
