"""Rows in blocks of a pool: any block may follow any other, and rows that begin alike may have the same ones."""

from __future__ import annotations

import functools
import math
import operator
import weakref
from collections.abc import Callable, Collection, Mapping

import attrs
import numpy as np
import torch
import torch.nn.functional as F

from specframe.contracts.cache import KVShape, KVView, PagedView, Placement
from specframe.contracts.round import Sequence
from specframe.contracts.states import StateLayer, StateStore
from specframe.errors import OptionError, literal
from specframe.value_checks import byte_count, whole
from specframe_std.kv.block_allocator import BlockAllocator, contents
from specframe_std.kv.host_memory import HostCopies, spared
from specframe_std.kv.kept_states import KeptStates
from specframe_std.kv.pooled import PooledRow, SharedPoolStore
from specframe_std.kv.quantised import EXACT, Quantisable
from specframe_std.kv.slot_tables import FILLER

GROWTH = 8
"""A pool of n blocks that is too small gets n / ``GROWTH`` more: each growth copies it, layer by layer. A pool with twice as many
at its end without a user is made smaller."""

LEAST = 128
"""Slots that a pool grows by, at least: a small one would be copied for every block."""

STATES = 16
"""Copies of states by default: about as many bytes as the states of two batches of eight rows."""

STRIDE = 512
"""Tokens before the first copy of a state by default: one weighs as much as the keys and values of hundreds."""


class Paged(Quantisable):
    """Gives rows blocks of one pool as they grow, and may keep complete blocks for prompts that begin alike.

    Options:
        block: tokens of a block, at least 1; of 16 a row leaves 8 unused on average.
        blocks: of each model's cache, at most; without it as many as the longest rows need all together.
        memory: the most bytes of each model's cache, as 2GB or 512MB, in place of blocks.
        share: "on": complete blocks are kept by their tokens and all before them, across rows and runs, until others need them;
            the least recently used ones go first. "off": a block is one row's, but for samples of one prompt.
        host: the most bytes of the host's memory, as 2GB, for what preempted sequences had in each model's cache: they come
            back from there and are not prefilled again. Without it they are.
        states: with share=on, of models whose layers keep a state, how many copies of a state are kept after some of a prompt's
            blocks, since a row goes on from there alone; the least recently used ones go first, and 0 keeps none.
        stride: tokens of a prompt before its first copy; more are taken after twice as many, four times as many and so on, where
            prompts part, and at the prompt's end.
        view: "rows": attention is handed a copy of each row's keys and values. "blocks": it is handed the blocks, which "packed"
            reads where torch's kernel takes blocks of their size, multiples of 256; they are copied for others.
        dtype: of the target's keys and values: "model", the model's own; "int8" or "fp8", with one scale for each token and head.
        draft_dtype: of the keys and values of drafts.
    """

    offers = frozenset({"scatter", "append", "move", "gather", "dense", "pooled", "bounded"})

    def __init__(
        self,
        block: int = 16,
        blocks: int | None = None,
        memory: str | int | None = None,
        share: str = "off",
        host: str | int | None = None,
        states: int = STATES,
        stride: int = STRIDE,
        view: str = "rows",
        dtype: str = EXACT,
        draft_dtype: str = EXACT,
    ) -> None:
        self.block = whole("block", block, 1)
        self.blocks = None if blocks is None else whole("blocks", blocks, 1)
        self.memory = None if memory is None else byte_count("memory", memory)
        self.host = None if host is None else byte_count("host", host)
        if self.blocks is not None and self.memory is not None:
            raise OptionError("paged: expected blocks or memory, got both")
        if share not in ("on", "off"):
            raise OptionError(f"share: expected 'on' or 'off', got {literal(share)}")
        self.share = share == "on"
        if self.share:
            self.offers -= {"append"}  # a row of columns has padding before its tokens, which blocks would hold as well
            self.offers |= {"prefix", "states"}
        self.states, self.stride = whole("states", states, 0), whole("stride", stride, 1)
        self._latest: weakref.ref[PagedStore] | None = None
        """The store that was opened last."""
        if view not in ("rows", "blocks"):
            raise OptionError(f"view: expected 'rows' or 'blocks', got {literal(view)}")
        self.in_blocks = view == "blocks"
        if self.in_blocks and {dtype, draft_dtype} != {EXACT}:
            raise OptionError(
                "view: expected 'rows' for keys and values in 8 bits, which no kernel reads, got 'blocks'"
            )
        if self.in_blocks:
            self.offers |= {"paged"}
        super().__init__(dtype, draft_dtype)

    def open_packed(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> PagedStore:
        """Return a store without a block."""
        store = BlockStore if self.in_blocks else PagedStore
        opened = store(shapes, rows, capacity, device, self)
        self._latest = weakref.ref(opened)
        return opened

    def open_states(self, layers: Mapping[int, StateLayer], rows: int, device: torch.device) -> StateStore:
        """Return the store of the states of the model whose keys and values were opened last."""
        keys = functools.partial(contents, block=self.block)
        opened = KeptStates(layers, rows, device, self.states, self.block, self.stride, keys)
        if (store := self._latest() if self._latest else None) is not None:
            store.states = opened
        return opened

    def most(self, rows: int, capacity: int, slot_bytes: int) -> int:
        """Return how many blocks there may be.

        Raises:
            OptionError: the memory does not suffice for one.
        """
        if self.blocks is not None:
            return self.blocks
        if self.memory is None:
            return rows * math.ceil((capacity + 1) / self.block)
        if self.memory < (self.block + 1) * slot_bytes:
            least = (self.block + 1) * slot_bytes
            raise OptionError(f"memory: expected at least {least:,} bytes, which one block takes, got {self.memory:,}")
        return (self.memory // slot_bytes - 1) // self.block


@attrs.define(eq=False)
class PageTable(PooledRow):
    """A row's blocks, in order."""

    blocks: list[int] = attrs.Factory(list)
    keys: list[bytes] = attrs.Factory(list)
    """The contents of the complete blocks of the tokens that it began with."""
    kept: int = 0
    """First blocks that have been kept by their content, or were found so."""


class PagedStore(SharedPoolStore[PageTable]):
    """Blocks of slots. Block b has the slots after ``(b - 1) * block``: slot 0 is nobody's.

    A block is written by the only row that has it. A row that is to write to one that others have gets a copy first.
    """

    def __init__(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device, how: Paged) -> None:
        super().__init__(shapes, rows, capacity, device)
        self._how, self.block, self._share, self.ahead = how, how.block, how.share, 0
        self.apart: Callable[[Sequence], bool] | None = None
        self.states: KeptStates | None = None
        """The states of the model's rows, or None if no layer keeps one. With states, blocks of prompts alone are kept: layers may
        take in generated tokens in another way."""
        self.blocks = BlockAllocator(how.most(rows, capacity, self.memory.slot_bytes))
        self.host = HostCopies(self.memory, how.host) if how.host else None
        """What sequences that wait had here, or None if nothing is kept of them."""

    def arrange(self, sequences: list[Sequence]) -> None:
        """Make these sequences the rows."""
        super().arrange(sequences)
        if self.host:
            self.host.sweep()  # who has begun needs no copy, and who was aborted none either

    def most_bytes(self, rows: int, capacity: int) -> tuple[int, int]:
        """Return the bytes of all blocks, and of what the pool takes while it grows to them."""
        return self.memory.sizes(1 + self._how.most(rows, capacity, self.memory.slot_bytes) * self.block)

    def widen(self, rows: int, capacity: int) -> None:
        """Serve a run of ``rows`` rows of ``capacity`` slots."""
        super().widen(rows, capacity)
        self.blocks.most = max(self.blocks.most, self._how.most(rows, capacity, self.memory.slot_bytes))

    def _admit(self, sequence: Sequence, tokens: int, waits: bool) -> tuple[PageTable, int] | None:
        row, found, there = PageTable(sequence, tokens), list[int](), 0
        if sequence.parent is not None:
            needed = 1
        else:
            if self._share:
                row.keys = self._contents(sequence, self._ids(sequence)[:tokens])
                self._keep_all()
                found = self.blocks.holding(row.keys[: (tokens - 1) // self.block])
                if waits and self._being_read(row, len(found)):
                    return None
                there = len(found)
                found = self._own_or_read(row, found)
            needed = math.ceil((tokens + 1) / self.block) - len(found)
        spare = len(self._rows)  # one block for each live row: who is admitted is not to stop the others at once
        if needed + spare > self.blocks.available - self.blocks.idle(found):
            return None
        row.blocks, row.kept = [*found], len(found)
        for block in found:
            self.blocks.share(block)
        try:
            self._append(row, 0 if sequence.parent else tokens)
        except torch.OutOfMemoryError:  # the device had less than was thought
            self._requeue(row)
            return None
        row.stands = self._bring_back(row, len(found) * self.block)
        return row, max(row.stands, there * self.block)  # states are kept where others' blocks end

    def _own_or_read(self, row: PageTable, found: list[int]) -> list[int]:
        """Return the blocks found for a row but for those that it would have to copy.

        Beyond its state it reads again, into blocks of its own. It may have a block there that nobody has.
        """
        if self.states is None:
            return found
        places = range(self.states.reach(row.keys[: len(found)]), len(found))
        return found[: next((place for place in places if self.blocks.users(found[place])), len(found))]

    def _bring_back(self, row: PageTable, known: int) -> int:
        """Bring back what a row's sequence had here before, beyond its first ``known`` slots; return how many it has then."""
        held = self.host.count(row.sequence) if self.host else 0
        if self.host is None or held <= known:
            return known
        self._clear()  # before the slots hold something
        back = self.host.bring_back(row.sequence, known, self._slots_of(row.blocks)[known:held])
        return held if back else known

    def _put_aside(self, row: PageTable) -> None:
        """Keep on the host what is known to be a row's own, if its sequence waits to come back."""
        waiting = row.sequence.resumed_as
        if self.host and waiting is not None and row.stands:
            self.host.keep(waiting, self._slots_of(row.blocks)[: row.stands])

    def _being_read(self, row: PageTable, found: int) -> bool:
        """Return whether more of a prompt's first blocks are being read for another row: it is worth waiting for them.

        A state is kept where they end, so that the row can begin there.
        """
        readers = (one for one in self._rows.values() if not one.sequence.ready and one.sequence.parent is None)
        wanted = row.keys[: (row.tokens - 1) // self.block]
        ahead = [one for one in readers if len(wanted) > found < len(one.keys) and one.keys[found] == wanted[found]]
        if self.states is not None:
            for one in ahead:
                self.states.keep_after(one.sequence, sum(map(operator.eq, one.keys, wanted)))
        return bool(ahead)

    def _begin(self, row: PageTable, parent: PageTable) -> None:
        row.blocks = parent.blocks[: math.ceil(self._inherited(row, parent) / self.block)]
        for block in row.blocks:
            self.blocks.share(block)

    def _fit(self, rows: list[PageTable], first: np.ndarray, end: np.ndarray) -> None:
        for row, begin, stop in zip(rows, first.tolist(), end.tolist(), strict=True):
            if begin < stop:
                self._own_alone(row, begin // self.block, math.ceil(stop / self.block))
                self._append(row, stop)

    def _own_alone(self, row: PageTable, first: int, end: int) -> None:
        """Give a row copies of those of its blocks that others have, too."""
        row.kept = min(row.kept, first)
        written = row.blocks[first:end]
        shared = [place for place, block in enumerate(written, first) if self.blocks.users(block) > 1]
        for block in written:
            if self.blocks.users(block) == 1:
                self.blocks.forget(block)
        for place in shared:
            copied = self._take()
            self.memory.copy(self._slots_of([row.blocks[place]]), self._slots_of([copied]))
            self.blocks.give_back(row.blocks[place])
            row.blocks[place], self._table_BS = copied, None

    def _append(self, row: PageTable, slots: int) -> None:
        """Give a row blocks for ``slots`` slots."""
        while len(row.blocks) * self.block < slots:
            row.blocks.append(self._take())
            self._fresh.append(self._slots_of(row.blocks[-1:]))
            self._table_BS = None

    def _take(self) -> int:
        """Return a block for one row alone.

        Where memory runs out the pool stays as large as it is: what is kept for later prompts is given up, or a sequence is
        preempted.

        Raises:
            torch.OutOfMemoryError: every block has a user.
        """
        blocks = self.blocks
        if not blocks.free and blocks.made < blocks.most and not self._room_for(blocks.made + 1):
            blocks.most = blocks.made
        return blocks.take()

    def _room_for(self, blocks: int) -> bool:
        """Have memory for ``blocks`` blocks, and for some more where the device has it; return whether there is."""
        if self.memory.count >= 1 + blocks * self.block:
            return True
        for count in (min(blocks + self._more(blocks), self.blocks.most), blocks):
            if spared(self.memory.resize, 1 + count * self.block):
                return True
        return False

    def _slots_of(self, blocks: list[int]) -> np.ndarray:
        """Return the slots of blocks, one block after the other."""
        slots: np.ndarray = (np.array(blocks)[:, None] * self.block - self.block + 1 + np.arange(self.block)).ravel()
        return slots

    def _numbers(self, rows: list[PageTable]) -> np.ndarray:
        numbers_BN = np.zeros((len(rows), max(len(row.blocks) for row in rows)), dtype=np.int64)
        for row, numbers_N in zip(rows, numbers_BN, strict=True):
            numbers_N[: len(row.blocks)] = row.blocks
        return numbers_BN

    def _table(self, rows: list[PageTable], numbers_BN: torch.Tensor) -> torch.Tensor:
        firsts_BN1 = (numbers_BN * self.block - self.block + 1)[:, :, None]
        slots_BNK = firsts_BN1 + torch.arange(self.block, device=self.device)
        return slots_BNK.where(firsts_BN1 > 0, FILLER).flatten(1)

    def _requeue(self, row: PageTable) -> None:
        self._put_aside(row)
        self._keep(row)
        for block in reversed(row.blocks):  # the last blocks of a prompt are evicted before the first ones
            self.blocks.give_back(block)
        self.blocks.trim()
        made, more = self.blocks.made, self._more(self.blocks.made)
        if self.memory.count > 1 + (made + 2 * more) * self.block:
            self._clear()
            self.memory.resize(1 + (made + more) * self.block)

    def _more(self, blocks: int) -> int:
        """Return how many blocks a pool of ``blocks`` has beyond them."""
        return max(blocks // GROWTH, LEAST // self.block)

    def _ids(self, sequence: Sequence) -> list[int]:
        """Return those of a sequence's tokens whose blocks may be another's."""
        return sequence.start_ids if self.states is None else sequence.request.prompt_ids

    def _contents(self, sequence: Sequence, ids: list[int], known: Collection[bytes] = ()) -> list[bytes]:
        """Return the keys of the blocks that a row's tokens fill, but for those of its first ones, which are known.

        What a slot holds depends on the tokens up to ``ahead`` after its own one, so a block's key includes these.
        """
        kind = b"apart" * (self.apart is not None and self.apart(sequence))
        after = [*known][-1] if known else kind + b"".join(token.to_bytes(8, "little") for token in ids[: self.ahead])
        return [*contents(ids[self.ahead + len(known) * self.block :], self.block, after)]

    def _keep_all(self) -> None:
        """Keep what live rows have read by now."""
        for row in self._rows.values():
            self._keep(row)

    def _keep(self, row: PageTable) -> None:
        """Keep the complete blocks of a row's own tokens by their content."""
        full = row.stands // self.block
        if not self._share or full <= row.kept:
            return
        if full > len(row.keys) and row.sequence.finished:  # the tokens that it has generated are known by now
            row.keys += self._contents(row.sequence, self._ids(row.sequence), row.keys)
        for block, key in [*zip(row.blocks, row.keys, strict=False)][row.kept : full]:
            self.blocks.keep(block, key)
        row.kept = min(full, len(row.keys))

    def _shared(self, rows: list[PageTable]) -> bool:
        return any(self.blocks.users(block) > 1 for row in rows for block in row.blocks)

    def _in_place(self, rows: list[PageTable], extent: int) -> slice | None:
        row = rows[0]
        if len(rows) > 1 or extent > self._width(row) or row.blocks != [*range(row.blocks[0], row.blocks[-1] + 1)]:
            return None
        start = (row.blocks[0] - 1) * self.block + 1
        return slice(start, start + extent)

    def _width(self, row: PageTable) -> int:
        return len(row.blocks) * self.block

    def reserved(self) -> int:
        """Return the slots of the blocks that rows have; those that several rows have count once."""
        return self.blocks.used * self.block


class BlockStore(PagedStore):
    """A paged store whose blocks attention reads where they lie, by a table of each row. Slots asked for by number are gathered.

    Tensor names carry their shape: B rows, N blocks of a row, P blocks of the pool, K slots of a block, H heads, D size of a head.
    """

    _tables: dict[torch.device, torch.Tensor] | None = None
    """The blocks of each row that are attended to, from 0 on, (B, N), or None if slots are asked for by number."""

    def _table(self, rows: list[PageTable], numbers_BN: torch.Tensor) -> torch.Tensor:
        self._numbers_BN = numbers_BN
        return super()._table(rows, numbers_BN)

    def _attend(self, placement: Placement, table_BS: torch.Tensor) -> None:
        if placement.attended_BS is not None:
            self._tables = None
            super()._attend(placement, table_BS)
            return
        count = math.ceil(placement.key_index_BS.shape[1] / self.block)
        numbers_BN = self._numbers_BN[:, :count]
        numbers_BN = F.pad(numbers_BN, (0, count - numbers_BN.shape[1]))
        # where a row has no block its first one is read: what is hidden has to be finite all the same
        numbers_BN = numbers_BN.where(numbers_BN > 0, numbers_BN[:, :1]) - 1
        self._tables = {device: numbers_BN.to(device, non_blocking=True) for device in self.memory.devices}

    def _view(self, keys_NHD: torch.Tensor, values_NHD: torch.Tensor) -> KVView:
        if self._tables is None:
            return super()._view(keys_NHD, values_NHD)
        keys_PKHD, values_PKHD = (part[1:].unflatten(0, (-1, self.block)) for part in (keys_NHD, values_NHD))
        return PagedView(keys_PKHD, values_PKHD, self._tables[keys_NHD.device], self.block)
