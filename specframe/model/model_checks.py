"""Self-tests of a model before its use: whether it depends on the masks and positions that it is given."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import attrs
import numpy as np
import torch
from transformers import PreTrainedModel

from specframe.contracts.attention import AttentionBackend
from specframe.contracts.cache import ChunkWindow, DenseView, KVShape, KVView, Placement, Window
from specframe.devices import kinds
from specframe.errors import ModelError, SpecframeError, sentence
from specframe.model import current_numerics
from specframe.model.attention.interface import Watched, in_pages
from specframe.model.padding_free import PaddingFree
from specframe.model.state_layers import open_states, state_forwards
from specframe.model.transformers_model import AS_IS, CallOptions, TransformersModel
from specframe.model.twin import twin
from specframe.models.own_cache import OwnCache
from specframe.models.precision import eps
from specframe.value_checks import unwrap_guards

PROBED_PAGE = 16
"""Slots of a page when a backend is tried that reads nothing else."""

LARGEST_PROBE = 2048
"""Slots per row that a model is tried on without masks, at most: 100 MB for one layer of a large model."""

SLOTS = [[0, 1, 2, 3], [2, 0, 3, 1]]
"""Whose key a slot of each row holds, of the tokens that a model is tried on: more of them than a window of two."""

_faults: weakref.WeakKeyDictionary[PreTrainedModel, dict[Any, str | None]] = weakref.WeakKeyDictionary()
"""Results of :meth:`SelfTests.without_masks` of a model, by attention backend, device and dtype."""


class SelfTests:
    """Tries the model that a feeder calls on a few tokens."""

    def __init__(self, feeder: TransformersModel) -> None:
        self._feeder = feeder
        self.attending: list[int] = []
        """The numbers of the layers with keys and values, each before that of its indexer, known with :attr:`kv_shapes`."""

    @functools.cached_property
    def kv_shapes(self) -> list[KVShape]:
        """The shape of every layer's keys and values, each before that of the keys of its indexer.

        So the first layers of a model have the first shapes.

        Raises:
            ModelError: the model cannot be fed so, its logits are not finite, it does not depend on the masks and positions it is
                given, or it attends in another way when it makes its masks itself.
        """
        probe = Reordered()
        logits_BTV = self.tried(probe)
        if hold_numbers(logits_BTV) and not logits_BTV.isfinite().all():
            raise ModelError(
                f"the logits of {self._feeder} are not finite after four tokens: expected weights without NaN, in a precision "
                "that holds their products"
            )
        self._require_equal(
            logits_BTV[1],
            logits_BTV[0],
            "when the same tokens have other slots",
            "a model that attends by the mask and positions it is given",
        )
        self._require_positions_heard(logits_BTV)
        self._require_own_masks(None, logits_BTV)
        if any(window is not None for window in self._feeder.windows.values()):
            self._require_own_masks(2, self.tried(Reordered(), window=2))
        elif self._feeder.state_layers and getattr(self._feeder.config, "sliding_window", None) is not None:
            self._require_own_masks(2, logits_BTV)  # a window that its layers' types do not mention
        self.attending = sorted(probe.shapes, key=lambda number: max(2 * number, -1 - 2 * number))
        shapes = [probe.shapes[layer] for layer in self.attending]
        return [attrs.evolve(one, device=None) if one.device == self._feeder.device else one for one in shapes]

    def _require_positions_heard(self, logits_BTV: torch.Tensor) -> None:
        """Raise :class:`ModelError` where a model that takes positions in another way ignores them."""
        if self._feeder.takes_positions or self._feeder.counts.relative or not self._feeder.windows:
            return
        apart_BTV = self.tried(Reordered(), apart=2)
        if hold_numbers(logits_BTV) and torch.equal(apart_BTV, logits_BTV):
            raise ModelError(
                f"{self._feeder} gives the same logits whatever positions it is given: expected a model that takes position_ids, "
                "or embeds the positions it counts in a module of its own"
            )

    def _require_own_masks(self, window: int | None, wanted: torch.Tensor) -> None:
        self._require_equal(
            self._alone(window),
            wanted,
            "when it makes its masks itself",
            "a causal language model that keeps to the sliding window of its configuration, if there is one",
        )

    def _require_equal(self, found: torch.Tensor, wanted: torch.Tensor, when: str, expected: str) -> None:
        if not (off := distance(found, wanted)) < self.tolerance:
            raise ModelError(
                f"{self._feeder} gives other logits {when}, off by {off:.2g} standard deviations: expected {expected}"
            )

    @torch.inference_mode()
    def tried(self, probe: Reordered, window: int | None = None, apart: int = 1) -> torch.Tensor:
        """Return the logits (2, 4, V) after four tokens of two rows whose keys and values a cache of the check puts in its slots.

        Keys and values are made contiguous from now on where a model needs that.

        Args:
            probe: the cache.
            window: in place of the size of every window, or None for as they are.
            apart: of the positions of tokens that follow each other.
        """
        places_BT, feeder = self._places, self._feeder
        placement = Placement(places_BT, places_BT, places_BT, torch.tensor(SLOTS, device=feeder.device))
        ids_BT, orders_BS = places_BT % feeder.vocabulary, placement.key_index_BS
        try:
            shown = feeder.masks(placement, window)
            return self._call(ids_BT, places_BT * apart, shown, probe, orders_BS, places_BT.shape[1]).float()
        except (SpecframeError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever a model raises
            if isinstance(error, RuntimeError) and not feeder.dense:
                feeder.dense = True
                return self.tried(probe, window, apart)
            raise ModelError(
                f"{feeder} does not take the positions and masks of its tokens: it raises {type(error).__name__} "
                f"({sentence(error)})"
            ) from error

    def _call(
        self,
        ids_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        masks: Any,
        store: Any,
        key_index_BS: torch.Tensor,
        keep: int,
        options: CallOptions = AS_IS,
    ) -> torch.Tensor:
        """Call the model. Layers with states begin with new ones."""
        if layers := self._feeder.state_layers:
            states = open_states(layers, len(ids_BT), self._feeder.device)
            states.feed(positions_BT)
            options = attrs.evolve(options, forwards={**options.forwards, **state_forwards(layers, states)})
        logits_BTV = self._feeder.call(ids_BT, positions_BT, masks, store, key_index_BS, keep, options)
        if layers:
            states.forget()  # what is noted knows its forward, and would stay until garbage is collected
        return logits_BTV

    @functools.cached_property
    def _places(self) -> torch.Tensor:
        """The places of four tokens in two rows, which a store strides in another way than one."""
        return torch.arange(4, device=self._feeder.device).repeat(2, 1)

    @torch.inference_mode()
    def _alone(self, window: int | None) -> torch.Tensor:
        """Return the logits (2, 4, V) after four tokens for which the model makes its own masks.

        They are fed as ``generate`` feeds them, all but the last in one pass over an empty cache: some models make other masks
        without a cache, some none at all for a prompt within their window, and some treat a token that is fed alone in a way of
        their own.

        Args:
            window: in place of the size of every window, or None for as they are.
        """
        places_BT, logits = self._places, []
        try:
            model = twin(self._feeder.module)
            config = model.config.get_text_config()
            for name in ("sliding_window", "attention_chunk_size") if window else ():
                if getattr(config, name, None) is not None:
                    setattr(config, name, window)
            alone, feeding = OwnCache(model), current_numerics.fed_alone(model)
            for fed_BT in places_BT.tensor_split([-1], dim=1):
                ids_BT = fed_BT % self._feeder.vocabulary
                with feeding(ids_BT):
                    logits.append(alone.feed(ids_BT, fed_BT).float())
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a model raises
            raise ModelError(
                f"{self._feeder} cannot read four tokens: it raises {type(error).__name__} ({sentence(error)})"
            ) from error
        return torch.cat(logits, dim=1)

    @torch.inference_mode()
    def without_masks(self, backend: AttentionBackend) -> str | None:
        """Return why an attention backend cannot take the place of this model's masks, or None if it can.

        Rows of unequal length are fed a few tokens over slots that hold noise, once with masks and once without. A model is tried
        the first time that this is asked.
        """
        if self._feeder.indexed:
            return "its layers choose what they attend to by a mask"
        if self._feeder.counts.biases:
            return "its layers add a bias of their own to scores, for which there has to be a mask"
        made, known = unwrap_guards(backend), _faults.setdefault(self._feeder.module, {})
        settings = repr(vars(made) if hasattr(made, "__dict__") else made)
        key = type(made), settings, self._feeder.device, self._feeder.dtype
        if key not in known:
            known[key] = self._fault(backend)
        return known[key]

    def _fault(self, backend: AttentionBackend) -> str | None:
        placement = self.uneven
        plan, page = backend.plan(placement), None if "dense" in backend.offers else PROBED_PAGE
        assert plan is not None
        attends, store = Watched(plan), Scratch(placement, page)
        with_masks = self.fed(placement, CallOptions(offers=backend.offers))
        without = self.fed(placement, CallOptions(attends, backend.offers), self._feeder.uncached, store)
        if not (off := distance(without, with_masks)) < self.tolerance:
            return f"its logits are off by {off:.2g} standard deviations without masks"
        return self._wrong_window(attends.windows)

    @property
    def uneven(self) -> Placement:
        """Rows of unequal length that hold more tokens than the narrowest window."""
        sizes = [size_of(window) for window in self._feeder.windows.values() if window is not None]
        slots = min(self._feeder.context, LARGEST_PROBE)
        return uneven_placement(min(sizes, default=None), slots, self._feeder.device)

    @functools.cached_property
    def without_padding(self) -> bool:
        """Whether the model gives the same logits when the real tokens of all rows are put into one row."""
        placement = self.uneven
        real_BT = placement.index_BT >= 0
        known = real_BT.cpu().numpy() if hold_numbers(real_BT) else np.ones(real_BT.shape, dtype=bool)
        padding_free = PaddingFree(known, self._feeder.device)
        try:
            rectangle, row = (self.fed(placement, CallOptions(padding_free=one)) for one in (None, padding_free))
        except torch.OutOfMemoryError:
            raise
        except Exception:  # whatever a model raises that does not attend by our function
            return False
        return distance(row, rectangle) < self.tolerance

    @torch.inference_mode()
    def fed(
        self,
        placement: Placement,
        options: CallOptions = AS_IS,
        masks: Any = None,
        store: Any = None,
    ) -> torch.Tensor:
        """Return the logits of the real tokens of a placement, (N, V), in rows that hold other tokens already."""
        ids_BT, shown = (
            placement.positions_BT % self._feeder.vocabulary,
            self._feeder.masks(placement) if masks is None else masks,
        )
        held, orders_BS, width = store or Scratch(placement), placement.key_index_BS, ids_BT.shape[1]
        logits_BTV = self._call(ids_BT, placement.positions_BT, shown, held, orders_BS, width, options)
        return (logits_BTV[placement.index_BT >= 0] if hold_numbers(logits_BTV) else logits_BTV).float()

    def _wrong_window(self, seen: list[Window]) -> str | None:
        """Describe how the windows that layers ask for differ from the configuration's."""
        kinds = getattr(self._feeder.config, "layer_types", None)
        windows = self._feeder.windows
        told = [windows[kind] for kind in kinds if kind in windows] if kinds else [windows["all"]] * len(seen)
        told = told[: len(seen)]  # the configuration may be of a model with more layers
        bounded = [
            [window if window and size_of(window) < self._feeder.context else None for window in given]
            for given in (seen, told)
        ]
        if bounded[0] == bounded[1]:
            return None
        return "its layers do not pass their sliding windows to attention"

    @functools.cached_property
    def tolerance(self) -> float:
        """Largest tolerated difference of logits that should be equal, in standard deviations of the logits."""
        return 0.02 if eps(self._feeder.module) <= torch.finfo(torch.float32).eps else 0.5


def size_of(window: int | ChunkWindow) -> int:
    """Return the number of tokens that a window shows at most."""
    return window.size if isinstance(window, ChunkWindow) else window


def hold_numbers(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds numbers, which can be compared, and no shape alone."""
    return kinds.of(tensor.device).values


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference of logits in standard deviations of the expected logits; NaN if a logit is not finite."""
    if not hold_numbers(found):
        return 0.0
    return float((found - wanted).abs().max() / wanted.std().clamp(min=1e-6))


class Reordered:
    """Hands keys and values back in the order of :data:`SLOTS`, strided as a slab's are, and remembers nothing but shapes."""

    def __init__(self) -> None:
        self.shapes: dict[int, KVShape] = {}

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> DenseView:
        """Return keys and values (B, H, S, D)."""
        self.shapes[layer] = KVShape(keys.shape[1], keys.shape[-1], values.shape[-1], keys.dtype, keys.device)
        return DenseView(self._in_order(keys), self._in_order(values))

    def _in_order(self, states: torch.Tensor) -> torch.Tensor:
        return states.transpose(1, 2)[[[0], [1]], SLOTS].contiguous().transpose(1, 2)


class Scratch:
    """Every slot of a placement's rows, filled with noise, and what is fed in its own slots.

    Args:
        placement: of what is fed.
        page: slots of a page, where keys and values are handed out in pages.
    """

    def __init__(self, placement: Placement, page: int | None = None) -> None:
        self._page, self._slots_BT, self._slots = page, placement.slots_BT, placement.key_index_BS.shape[1]
        self._rows_B1 = torch.arange(len(self._slots_BT), device=self._slots_BT.device)[:, None]
        self._real_BT = placement.index_BT >= 0

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> KVView:
        """Return keys and values of all slots."""
        generator = torch.Generator().manual_seed(layer)
        view = DenseView(self._written(keys, generator), self._written(values, generator))
        return view if self._page is None else in_pages(view, self._page)

    def _written(self, states: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        rows, heads, _fed, size = states.shape
        noise = torch.randn(rows, self._slots, heads, size, generator=generator)
        real_BT, slots_BT = self._real_BT.to(states.device), self._slots_BT.to(states.device)
        spread = states.transpose(1, 2)[real_BT].float().std().cpu() if kinds.of(states.device).values else 1.0
        # noise like the entries of the model's own
        held = (noise * spread).to(states.device, states.dtype)
        held[self._rows_B1.to(states.device), slots_BT] = states.transpose(1, 2)
        return held.transpose(1, 2)


def uneven_placement(window: int | None, slots: int, device: torch.device) -> Placement:
    """Return where the last tokens of three rows go whose slots are their places: one of two tokens, one of all slots, one between.

    More tokens are fed than the first row has, more are held than the window, and slots after a row's end hold noise.

    Args:
        window: of how many tokens the narrowest window or chunk is, or None if there is none.
        slots: at most that many are held.
        device: of the model.
    """
    longest = min(slots - 1, max(12, 2 * (window or 0)))
    used_B = torch.tensor([2, longest, longest // 2 + 1], device=device)
    index_BT = used_B[:, None] - 4 + torch.arange(4, device=device)
    key_index_1S = torch.arange(longest + 1, device=device)[None]
    slots_BT = index_BT.where(index_BT >= 0, longest)  # padding goes where no row has a token
    return Placement(index_BT.clamp(min=0), slots_BT, index_BT, key_index_1S, in_order=True)
