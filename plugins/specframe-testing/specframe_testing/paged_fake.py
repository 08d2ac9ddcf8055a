"""A KV backend that keeps pages, and an attention backend that reads them: small, slow, and there to try what needs pages.

Rows whose prompts begin alike share the pages that the common beginning fills. No drafted token is written to a shared page.
"""

from __future__ import annotations

import itertools

import attrs
import torch
import torch.nn.functional as F

from specframe.contracts.attention import AttentionFacts
from specframe.contracts.cache import KVShape, KVView, PagedView, Placement, Window
from specframe.contracts.round import Sequence
from specframe.model.attention.interface import gather_slots


class Pages:
    """Keys and values in pages of a pool, which rows that begin alike share.

    Options:
        page: slots of a page.
        pages: of all rows; without it as many as the rows take that share nothing.
        lasting: keep what is cached of released sequences' prompts, for prompts that begin alike, until others need the pages.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"scatter", "move", "paged"})

    def __init__(self, page: int = 4, pages: int | None = None, lasting: bool = False) -> None:
        self.page, self.pages, self.lasting = page, pages, lasting

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> PagedFakeStore:
        """Return a store whose rows have a spare slot for padding."""
        count = -(-(capacity + 1) // self.page)
        return PagedFakeStore(shapes, rows, count, self.page, device, self.pages, self.lasting)


@attrs.define(eq=False)
class FakeRow:
    """The pages of one sequence, in order, and how many of the first are another's, too."""

    sequence: Sequence
    pages: list[int]
    shared: int
    tokens: int
    """Tokens that the sequence began with."""
    begun: bool = False
    """Whether it has been arranged."""


class PagedFakeStore:
    """Pages (P, page, H, D) of each layer, and a table of pages for each live sequence."""

    slots, first = None, 0

    def __init__(
        self,
        shapes: list[KVShape],
        rows: int,
        count: int,
        page: int,
        device: torch.device,
        pages: int | None = None,
        lasting: bool = False,
    ) -> None:
        self.rows, self.page, self._count, self._lasting = rows, page, count, lasting
        pages = rows * count if pages is None else pages
        self._layers = [
            [
                torch.zeros(pages, page, shape.heads, size, dtype=shape.dtype, device=device)
                for size in (shape.key_size, shape.value_size)
            ]
            for shape in shapes
        ]
        self._device, self._users = device, [0] * pages
        self._rows: dict[int, FakeRow] = {}
        self._past: list[FakeRow] = []
        """What is left of released sequences, the longest ago first."""

    @property
    def shared(self) -> int:
        """Pages that several rows have."""
        return sum(users > 1 for users in self._users)

    def arrange(self, sequences: list[Sequence]) -> None:
        """Take the tables of ``sequences``; whoever has none is given pages. A fork begins with its parent's last page."""
        for sequence in sequences:
            if id(sequence) not in self._rows and self.reserve(sequence, len(sequence.start_ids)) is None:
                raise torch.OutOfMemoryError(f"expected {self._count} pages for a row: out of memory")
            row = self._rows[id(sequence)]
            if sequence.parent is not None and not row.begun and (parent := self._rows.get(id(sequence.parent))):
                for part in itertools.chain(*self._layers):
                    part[row.pages[row.shared]] = part[parent.pages[row.shared]]
            row.begun = True
        self._table_BN = torch.tensor([self._rows[id(one)].pages for one in sequences], device=self._device)

    def reserve(self, sequence: Sequence, tokens: int) -> int | None:
        """Give a sequence pages, and those of the longest common beginning of prompts; return how many of its tokens they hold.

        A prompt's last token may be missing in a draft model's pages, and any token where the prompt is still read. Without enough
        pages that nobody has, None is returned.
        """
        like, common = None, 0
        for row in (*self._past, *self._rows.values()):
            pairs = zip(row.sequence.request.prompt_ids, sequence.request.prompt_ids, strict=False)
            length = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            if length > common:
                like, common = row, length
        shared = like.pages[: common // self.page] if like else []
        self._forget(self._count - len(shared), like)
        free = [page for page, users in enumerate(self._users) if not users][: self._count - len(shared)]
        if len(shared) + len(free) < self._count:
            return None
        self._rows[id(sequence)] = FakeRow(sequence, [*shared, *free], len(shared), tokens)
        for page in (*shared, *free):
            self._users[page] += 1
        if like is None or not like.sequence.ready:
            return 0
        return min(common, len(like.sequence.request.prompt_ids) - 1) // self.page * self.page

    def release(self, sequence: Sequence) -> None:
        """Give a sequence's pages back, as far as no other has them; of a prompt that was read the full ones may be kept."""
        row = self._rows.pop(id(sequence), None)
        if row is None:
            return
        read = self._lasting and len(sequence.start_ids) > row.tokens  # one that has generated has read its prompt
        full = (len(sequence.request.prompt_ids) - 1) // self.page if read else 0
        for page in row.pages[full:]:
            self._users[page] -= 1
        if full:
            row.pages = row.pages[:full]
            self._past.append(row)

    def _forget(self, needed: int, like: FakeRow | None) -> None:
        """Give up what is left of released sequences, but for one, until ``needed`` pages are free."""
        for row in [one for one in self._past if one is not like]:
            if sum(not users for users in self._users) >= needed:
                return
            self._past.remove(row)
            for page in row.pages:
                self._users[page] -= 1

    def expect(self, placement: Placement) -> None:
        """Take the slots that the next forward writes."""
        self._pages_BT, self._places_BT = self._places(placement.slots_BT)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> PagedView:
        """Write (B, H, T, D) keys and values; return the layer's pages, with the batch's tables."""
        held_keys, held_values = self._layers[layer]
        held_keys[self._pages_BT, self._places_BT] = keys.transpose(1, 2)
        held_values[self._pages_BT, self._places_BT] = values.transpose(1, 2)
        return PagedView(held_keys, held_values, self._table_BN, self.page)

    def move(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        """Move slots of the batch's rows in every layer."""
        if targets_BT is None:
            targets_BT = torch.arange(sources_BT.shape[1], device=sources_BT.device).expand_as(sources_BT)
        sources, targets = self._places(sources_BT), self._places(targets_BT)
        for part in itertools.chain(*self._layers):
            part[targets] = part[sources]

    def _places(self, slots_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the page of each slot, and its place there."""
        return self._table_BN.gather(1, slots_BT // self.page), slots_BT % self.page

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return sum(part.nbytes for part in itertools.chain(*self._layers))


class Gathering:
    """Attends to pages after copying each row's into plain tensors."""

    needs = frozenset({"paged"})
    offers = frozenset({"paged", "tree", "window", "chunk"})
    expects = "any model"

    def suits(self, facts: AttentionFacts) -> bool:
        """Return whether it can attend for a model: for any."""
        return True

    def plan(self, placement: Placement) -> Gathered:
        """Return the attention of one forward."""
        return Gathered(placement)


class Gathered:
    """The attention of one forward, layer by layer."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def attend(self, query: torch.Tensor, view: KVView, scaling: float | None, window: Window) -> torch.Tensor:
        """Return what (B, H, T, D) queries attend to, (B, T, H, D)."""
        dense, seen_BTS = gather_slots(view, self._placement.key_index_BS.shape[1]), self._placement.seen(window)
        shared = query.shape[1] != dense.keys.shape[1]
        output = F.scaled_dot_product_attention(
            query, dense.keys, dense.values, seen_BTS[:, None], scale=scaling, enable_gqa=shared
        )
        return output.transpose(1, 2).contiguous()
