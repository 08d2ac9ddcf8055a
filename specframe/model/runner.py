"""A transformers model fed with explicit positions and masks."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Mapping

import attrs
import torch
from torch.amp.autocast_mode import is_autocast_available
from transformers import PreTrainedModel

from specframe.contracts.attention import AttentionBackend
from specframe.contracts.cache import KVShape, KVStore, Placement
from specframe.contracts.drafts import Block, Scores
from specframe.contracts.model import PLAIN, ForwardOptions, Layers
from specframe.contracts.requests import Request
from specframe.errors import ModelError, PromptError
from specframe.model import current_numerics
from specframe.model.attention.choice import Attention, AttentionChoice
from specframe.model.decoder_layers import Forwards, HiddenStates, decoder_layers
from specframe.model.model_checks import SelfTests
from specframe.model.padding_free import PaddingFree, PaddingFreeBlock, pays
from specframe.model.positions import Rope
from specframe.model.state_layers import state_forwards
from specframe.model.transformers_model import NOTHING, CallOptions, TransformersModel
from specframe.plugins.registry import registry


class ModelRunner(TransformersModel):
    """Runs a model's blocks: a feeder that tests its model before use, and chooses how it attends and how layers run."""

    def __init__(self, model: PreTrainedModel, role: str) -> None:
        super().__init__(model, role)
        self._ways = weakref.WeakKeyDictionary[ForwardOptions, tuple[AttentionChoice, Forwards]]()
        self.tests = SelfTests(self)

    @functools.cached_property
    def layers(self) -> Layers:
        """What runs forwards as straight code, where layers are not eager."""
        made: Layers = registry().entry("option", "layers").factory(self)
        return made

    @property
    def kv_shapes(self) -> list[KVShape]:
        """The shape of every layer's keys and values, each before that of its indexer's keys, found by feeding a few tokens.

        Raises:
            ModelError: a self-test fails, or autocast has the model computed in another precision.
        """
        kind, own = self.device.type, self.dtype
        if (
            is_autocast_available(kind)
            and torch.is_autocast_enabled(kind)
            and (cast := torch.get_autocast_dtype(kind)) != own
        ):
            raise ModelError(
                f"{self} is in {str(own)[6:]} and torch.autocast is on for {str(cast)[6:]}: expected one precision, so load the "
                "model in that, or decode outside of autocast"
            )
        return self.tests.kv_shapes

    @functools.cached_property
    def _numbers(self) -> Mapping[int, int] | None:
        """A store's number of each layer that attends, by the model's, and of indexers, or None if all attend."""
        same = not self.state_layers and not self.indexed
        return None if same else {number: place for place, number in enumerate(self.tests.attending)}

    @property
    def spread(self) -> bool:
        """Whether layers are on other devices than the model's first weights."""
        return any(shape.device is not None for shape in self.kv_shapes)

    def without_masks(self, backend: AttentionBackend) -> str | None:
        """Return why an attention backend cannot take the place of this model's masks, or None if it can."""
        return "its layers are on several devices" if self.spread else self.tests.without_masks(backend)

    def forward(
        self,
        block: Block,
        placement: Placement,
        store: KVStore,
        *,
        keep: int,
        hidden: tuple[int, ...] = (),
        how: ForwardOptions = PLAIN,
    ) -> Scores:
        """Feed a block into a cache and return the scores: logits of its last ``keep`` tokens, (B, keep, V)."""
        if not torch.is_inference_mode_enabled():  # rounds are in it, and to enter it again takes its time
            with torch.inference_mode():
                return self.forward(block, placement, store, keep=keep, hidden=hidden, how=how)
        plan, offers = None, frozenset[str]()
        choice, forwards = self._kept(how)
        stored, placement = self.narrowed(placement, store.slots)
        if (backend := choice.way(placement)) is not None:
            offers = backend.offers
            if "lengths" in offers and store.slots is not None:
                every = placement.key_index_BS.new_empty(1, store.slots)
                stored = placement = attrs.evolve(placement, key_index_BS=every)
            plan = backend.plan(placement)
        store.expect(stored)
        positions_BT = placement.positions_BT
        if not placement.even or placement.key_index_BS.shape[1] > self.rope.last_position + 1:
            positions_BT = positions_BT.clamp(0, self.rope.last_position)
        shown = self.masks(placement) if plan is None else self.uncached
        ids_BT = block.ids_BT.clamp(max=self.vocabulary - 1)
        of_tokens, padding_free = block.extra, self._padding_free(block)
        traced, found = None, dict[int, torch.Tensor]()
        if how.layers != "eager" and not of_tokens:
            rows, width = ids_BT.shape if padding_free is None else (1, padding_free.tokens)
            traced = self.layers.of(how, rows, width, hidden)
            if traced is not None and not traced.serves(padding_free is not None, plan is None):
                traced = None
        if hidden and traced is None:
            forwards, found = self.taps.placed(hidden, forwards)
        if padding_free is not None:
            of_tokens = {name: padding_free.row(values) for name, values in of_tokens.items()}
        with current_numerics.attending(placement):
            logits_BTV = self.call(
                ids_BT,
                positions_BT,
                shown,
                store,
                placement.key_index_BS,
                keep,
                CallOptions(
                    plan,
                    offers,
                    traced,
                    forwards,
                    of_tokens,
                    self._numbers,
                    padding_free,
                    stored.key_index_BS.shape[1],
                    found,
                ),
            )
        if padding_free is not None:
            found = {number: padding_free.rectangle(states_1ND) for number, states_1ND in found.items()}
        return Scores(logits_BTV, found, None if padding_free is None else padding_free.tokens)

    def narrowed(self, placement: Placement, slots: int | None) -> tuple[Placement, Placement]:
        """Return the placement that a forward's store receives, and the one that its tokens attend by: the same one twice.

        Args:
            placement: as the layout made it.
            slots: of the store, where its memory never moves.
        """
        return placement, placement

    def _padding_free(self, block: Block) -> PaddingFree | None:
        """Return the places of a block's real tokens, or None if all are computed."""
        if isinstance(block, PaddingFreeBlock):
            return block.padding_free
        padding_free = block.counts is not None and self.leaves_out_padding(block.ids_BT.numel(), block.tokens)
        return PaddingFree(block.real, self.device) if padding_free else None

    def leaves_out_padding(self, places: int, tokens: int) -> bool:
        """Return whether to compute only the real tokens of a block: where that pays, and the model can be fed so.

        Layers with a state take in rows, and layers that choose what they attend to mask rows: both are fed the rectangle.
        """
        if self.state_layers or self.indexed or not pays(places, tokens, self.layer_weights):
            return False
        return not self.spread and self.tests.without_padding

    @functools.cached_property
    def taps(self) -> HiddenStates:
        """The places at which hidden states are taken."""
        return HiddenStates(self.twin, str(self))

    @functools.cached_property
    def attention(self) -> Attention:
        """What is known of this model's attention."""
        return Attention(self)

    def _kept(self, how: ForwardOptions) -> tuple[AttentionChoice, Forwards]:
        """Return what all forwards with these options share: the choice of the attention backend, and the forwards of states."""
        if (kept := self._ways.get(how)) is None:
            of_states = NOTHING if how.states is None else state_forwards(self.state_layers, how.states)
            kept = self._ways[how] = AttentionChoice(self.attention, how.attention), of_states
        return kept

    def require(self, how: ForwardOptions, hidden: Iterable[int] = ()) -> None:
        """Raise :class:`ModelError` unless the model can attend so, and these are numbers of its hidden states.

        Layers that are asked for as traced or compiled are so here, before the first round: what that takes is no time of decoding.
        """
        self._kept(how)
        if wanted := tuple(hidden):
            self.taps.check(wanted)
        if how.layers in ("traced", "compiled"):
            with torch.inference_mode():
                self.layers.of(how, 2, 2, wanted)

    def tokens_at_once(self, slots: int, how: ForwardOptions) -> int:
        """Return how many tokens of prompts, over all rows, are read in one forward that attends to ``slots`` slots."""
        return self._kept(how)[0].prefill_tokens(slots)

    def by_lengths(self, how: ForwardOptions) -> bool:
        """Return whether tokens whose slots are their places attend by lengths alone."""
        return self._kept(how)[0].packs

    def require_decodable(self, request: Request) -> None:
        """Raise :class:`PromptError` for a request whose rotary factors may change while it is decoded."""
        if why := self.rope.refusal(request):
            raise PromptError(why)

    @property
    def by_rows(self) -> Rope | None:
        """The rotary factors of rows, or None where these do not depend on lengths."""
        return self.rope if self.rope.forwards else None

    @functools.cached_property
    def layer_weights(self) -> int:
        """Weights of the largest decoder layer, those of the model where its layers are not known."""
        layers = decoder_layers(self.twin) or [self.twin]
        return max(sum(weight.numel() for weight in layer.parameters()) for layer in layers)
