"""A transformers model with explicit positions of its tokens and a rule of which of them see which."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import torch
from transformers import PreTrainedModel

from specframe.contracts.attention import Attend
from specframe.contracts.cache import ChunkWindow, Placement, Window
from specframe.contracts.model import StraightForward
from specframe.contracts.states import StateLayer
from specframe.devices.kinds import NO_CONTEXT, numbers
from specframe.errors import ModelError
from specframe.model.attention.interface import StoreCache
from specframe.model.attention.masks import masks
from specframe.model.decoder_layers import Forwards, decoder_layers, ints_and_sizes_left_open
from specframe.model.padding_free import PaddingFree
from specframe.model.positions import Rope, context_length, counted_positions, takes_position_ids
from specframe.model.state_layers import state_layers
from specframe.model.twin import NAME, CurrentForward, attention_of, made_of, running, twin
from specframe.models.layer_configs import layer_configs

NOTHING: Mapping[Any, Any] = MappingProxyType({})


@attrs.frozen(eq=False)
class CallOptions:
    """How one forward is run."""

    plan: Attend | None = None
    """Attends in place of the model's own attention, or None if that attends by the masks."""
    offers: frozenset[str] = frozenset()
    """The capabilities of the attention backend that made the plan."""
    traced: StraightForward | None = None
    """Computes what the modules do, or None to call the modules."""
    forwards: Forwards = NOTHING
    """Replacements of modules' ``forward``, apart from those of rotary modules."""
    extra: Mapping[str, Any] = NOTHING
    """Further arguments of the model's ``forward``."""
    numbers: Mapping[int, int] | None = None
    """The store's number of each layer that attends, by the model's, or None if they are the same."""
    padding_free: PaddingFree | None = None
    """Lays the real tokens in one row, or None if the model is fed the rectangle."""
    orders: int | None = None
    """The number that all token indices of keys are below, or None for the number of slots attended to."""
    hidden: dict[int, torch.Tensor] = attrs.Factory(dict)
    """The hidden states that straight code gives, by their number, which the forward fills in."""


AS_IS = CallOptions()
"""By the masks, as a rectangle, with layers as they are."""


class TransformersModel:
    """Calls a causal language model on explicit positions and masks, over a cache that is a KV store.

    Args:
        model: a transformers causal language model whose layers attend (fully or in a sliding window), or keep a state of a kind
            that a plugin has registered.
        role: "target" or "draft", for observers and errors.

    Raises:
        ModelError: the model takes no positions or no cache, or has layers that cannot forget and keep no known state.
    """

    def __init__(self, model: PreTrainedModel, role: str) -> None:
        self.module, self.role, self._made_of = model, role, made_of(model)
        model = self.twin = twin(model)
        """What is run, see :mod:`specframe.model.twin`: nothing of the model itself is changed."""
        self.config = model.config.get_text_config()
        self.device, self.dtype = next(model.parameters()).device, model.dtype
        self._mixed = has_other_layers(self.config)
        self.state_layers = state_layers(model, f"the {role}") if self._mixed else {}
        """The modules that keep a state, numbered in the order of their layers."""
        layers = len(decoder_layers(model))
        self.windows = attention_windows(self.config, role, self.state_layers.values(), layers)
        kinds = getattr(self.config, "layer_types", None) or ()
        self.chunks = {
            number: one for number, kind in enumerate(kinds) if isinstance(one := self.windows.get(kind), ChunkWindow)
        }
        """The layers that attend in chunks, by their number."""
        self.indexed = "indexed_attention" in kinds
        """Whether layers choose what they attend to by keys of an indexer, which depends on the mask."""
        if self.indexed and any(hasattr(one, "compress_ratio") for one in model.modules()):
            raise ModelError(
                f"{self} has layers of type indexed_attention whose indexer reads the positions of all tokens from a cache of "
                "transformers; expected one that depends on the mask and on its own keys"
            )
        self.context = int(context_length(self.config) or 2**31)
        self.vocabulary = int(self.config.vocab_size)
        takes = inspect.signature(model.forward).parameters
        self._cache = "past_key_values"
        """What the model calls its cache."""
        if self.state_layers and not self.windows and "cache_params" in takes:
            self._cache = "cache_params"  # of layers that keep states alone, and know no positions
        self.counts = counted_positions(model, str(self))
        """How the model counts positions by itself."""
        self.takes_positions = "position_ids" in takes
        self._hands_positions_on = takes_position_ids(model)
        told = self._hands_positions_on or self.counts.absolute or self.counts.relative
        missing = ["position_ids"] * (not told) + [self._cache] * (self._cache not in takes) if self.windows else []
        if missing:
            raise ModelError(
                f"the {role} ({type(model).__name__}) takes no {' and no '.join(missing)}: expected a model that takes "
                "the position of every token and keeps its keys and values where they are passed"
            )
        self.implementation = attention_of(self.config)
        """The attention that the model asks for."""
        if (attends := self.implementation or "").startswith(("flex", "flash")):
            raise ModelError(
                f"{self} is set to {attends}, which takes no mask tensor: expected sdpa or eager, so load it with "
                "attn_implementation='sdpa', or call its set_attn_implementation('sdpa')"
            )
        self.takes_logits_to_keep = "logits_to_keep" in takes
        self._kinds = hasattr(self.config, "layer_types")
        """Whether each kind of layer has a mask of its own, or there is one for all."""
        self.rope = Rope(model, self.context, str(self), bounded=role == "target")
        if self.implementation == "sdpa" and by_interface(model):
            self.config._attn_implementation = NAME
        self.dense = False
        """Whether layers need keys and values that are contiguous."""

    def __str__(self) -> str:
        return f"the {self.role} ({type(self.module).__name__})"

    def serves(self, model: torch.nn.Module) -> bool:
        """Return whether it runs a model as that is now: no module, setting or adapter has changed since. Weights may have."""
        return self.module is model and self._made_of == made_of(model)

    @functools.cached_property
    def uncached(self) -> torch.Tensor | dict[str, Any]:
        """Masks that are not looked at, one for each kind of layer: without any, transformers would build its own."""
        return self.per_kind(
            {kind: torch.zeros(1, 1, 1, 1, dtype=self.dtype, device=self.device) for kind in self.windows}
        )

    def call(
        self,
        ids_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        masks: Any,
        store: Any,
        key_index_BS: torch.Tensor,
        keep: int,
        how: CallOptions,
    ) -> torch.Tensor:
        """Return the logits (B, keep, V) of the last ``keep`` tokens that are fed.

        Args:
            masks: the model's ``attention_mask``, as :meth:`masks` returns it.
            store: takes keys and values, and hands out those to attend to.
            key_index_BS: the index of the token in each slot that is attended to.
            keep: tokens whose logits are asked for.
            how: options of the forward.
        """
        padding_free, plan = how.padding_free, how.plan
        if padding_free is not None:
            ids_BT, positions_BT = padding_free.row(ids_BT), padding_free.row(positions_BT)
        kept = keep if padding_free is None else padding_free.kept(keep)
        compiling = ints_and_sizes_left_open() if "compiled" in how.offers else NO_CONTEXT
        extent = key_index_BS.shape[1]
        told = self.counts.told(positions_BT, key_index_BS, how.orders or extent)
        cache = StoreCache(store, extent, self.dense, padding_free, how.numbers, told.lengths, "paged" in how.offers)
        replaced = {**self.rope.forwards, **told.forwards, **how.forwards}
        state = CurrentForward(plan, cache, replaced, told.functions, padding_free, self.chunks, [])
        with compiling, running(state):
            if how.traced is None:
                logits = self.twin(**self.inputs(ids_BT, positions_BT, masks, cache, kept, how.extra)).logits
            else:
                shown = masks.values() if isinstance(masks, dict) else [masks]
                if isinstance(kept, int):  # 0 means all
                    kept = numbers(kept and ids_BT.shape[1] - kept, ids_BT.shape[1], self.device)[0]
                logits, *states = how.traced(ids_BT, positions_BT, key_index_BS, kept, *shown)
                how.hidden.update(zip(how.traced.hidden, states, strict=True))
        if padding_free is not None:
            return padding_free.logits(logits, keep)
        return logits if logits.shape[1] == keep else logits[:, -keep:]

    def inputs(
        self,
        ids_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        masks: Any,
        cache: Any,
        kept: Any,
        extra: Mapping[str, Any] = NOTHING,
    ) -> dict[str, Any]:
        """Return the arguments of the model's ``forward``; logits are asked for of the tokens that ``kept`` tells, as
        ``logits_to_keep`` does."""
        given = {"input_ids": ids_BT, self._cache: cache, **extra}
        given["use_cache"] = not self._mixed  # some ask for a cache of a class of their own where they are to fill it
        if self.takes_logits_to_keep:
            given["logits_to_keep"] = kept
        if self.windows:
            given["attention_mask"] = masks
            if self._hands_positions_on:
                given["position_ids"] = positions_BT
        return given

    def masks(self, placement: Placement, window: int | None = None) -> torch.Tensor | dict[str, Any]:
        """Return the additive mask (B, 1, T, S) of each kind of layer, as the model takes them.

        ``window``, if there is one, is in place of the size of every window.
        """
        windows = self.windows
        if window is not None:
            windows = {
                kind: attrs.evolve(own, size=window) if isinstance(own, ChunkWindow) else own and window
                for kind, own in windows.items()
            }
        made = masks(placement, windows.values(), self.dtype)
        return self.per_kind({kind: made[own] for kind, own in windows.items()})

    def per_kind(self, masks: dict[str, Any]) -> torch.Tensor | dict[str, Any]:
        """Return masks as the model takes them: one per kind of layer, None for those without keys and values, or one for all."""
        if not self._kinds:
            return masks["all"]
        return KindMasks(masks) if self._mixed else masks


def by_interface(model: torch.nn.Module) -> bool:
    """Return whether a model attends by transformers' interface, which finds attention functions by their names.

    Falcon does not: it compares the name with ``sdpa``, and under another name expects another kind of mask.
    """
    forwards = (inspect.unwrap(type(one).forward) for one in model.modules())
    return any("ALL_ATTENTION_FUNCTIONS" in getattr(one, "__globals__", ()) for one in forwards)


class KindMasks(dict[str, Any]):
    """The masks of the kinds of layers that attend, and None for all others."""

    def __missing__(self, kind: str) -> None:
        """Return None: such layers attend to nothing."""


ATTENDING = frozenset({"full_attention", "sliding_attention", "chunked_attention", "indexed_attention"})
"""The types of layers, as transformers has them, whose keys and values can forget rejected tokens."""

BOTH = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
"""The types of layers that attend and keep a state as well, and how they attend."""

NEITHER = frozenset({"mlp", "moe"})
"""The types of layers that keep nothing of a row's tokens."""

POOLING = frozenset({"compressed_sparse_attention", "heavily_compressed_attention"})
"""The types of layers that keep one key for several tokens, and their state between two of these."""


def has_other_layers(config: Any) -> bool:
    """Return whether a configuration has layers of a type that does not attend."""
    return not ATTENDING.issuperset(getattr(config, "layer_types", None) or ())


def one_size(config: Any, name: str, role: str) -> int | None:
    """Return the size that all layers of a configuration have, or None if they have none.

    Raises:
        ModelError: they have different ones: transformers makes one mask for all layers of a kind.
    """
    size, *sizes = (getattr(one, name, None) for one in layer_configs(config))
    if unlike := [one for one in sizes if one != size]:
        raise ModelError(f"the {role} has layers with {name} {size} and {unlike[0]}: expected one for all layers")
    return size


def attention_windows(config: Any, role: str, states: Iterable[StateLayer] = (), layers: int = 0) -> dict[str, Window]:
    """Return the window of each kind of attention layer, or None for a kind without one, keyed as the model's masks are.

    Models without ``layer_types`` have one kind, "all".

    Args:
        states: what keeps a state of a known kind.
        layers: how many of the configuration's first layers the model has, or 0 for all.

    Raises:
        ModelError: when a layer keeps a state of no known kind (recurrent or convolutional layers), or windows differ.
    """
    kinds, sliding = getattr(config, "layer_types", None), one_size(config, "sliding_window", role)
    chunk = ChunkWindow(size) if (size := one_size(config, "attention_chunk_size", role)) else None
    if kinds is None:
        return {"all": sliding or chunk}
    windows: dict[str, Window] = {
        "full_attention": None,
        "sliding_attention": sliding,
        "chunked_attention": chunk,
        "indexed_attention": None,
    }
    had, known = enumerate(kinds[: layers or None]), {one.number for one in states}
    unknown = sorted({kind for number, kind in had if kind not in ATTENDING | NEITHER and number not in known})
    if pooling := sorted(POOLING.intersection(unknown)):
        raise ModelError(
            f"the {role} has layers of type {', '.join(pooling)}, which pool the keys of several tokens as soon as they are fed, "
            "so that a rejected token could not be taken out again; expected layers that keep the keys of each token"
        )
    if unknown:
        raise ModelError(
            f"the {role} has layers of type {', '.join(unknown)}; expected only {', '.join(windows)}, "
            "whose cache can forget rejected tokens, or a kind of state that an installed plugin registers by the hook "
            "specframe_register_state_kinds"
        )
    attends = {kind: BOTH.get(kind, kind) for kind in kinds}  # layers that do both find their masks by either name
    return {name: windows[how] for kind, how in attends.items() for name in (how, kind) if how in windows}
