"""Cache checks: a shadow KV cache of each model's cache, with the name of a token in every slot.

The shadow cache's store is opened by the same KV backend, with keys and values of three numbers: which sequence, which place in it,
which token. It is moved and written exactly as the cache itself, so what a query is about to see can be read back and
held against the tokens of its row. Keys and values that are wrong although all of them lie in the right place show in
the target's logits, which are computed afresh without any cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import attrs
import numpy as np
import torch
from transformers import PreTrainedModel

from specframe.contracts.cache import KVShape, KVStore, Placement, Rounding
from specframe.contracts.drafts import Block, Scores
from specframe.contracts.model import Model
from specframe.contracts.round import Batch, Sequence
from specframe.model import current_numerics
from specframe.model.attention.interface import gather_slots
from specframe.model.attention.masks import masks
from specframe.model.positions import FAR, takes_position_ids
from specframe.model.twin import twin
from specframe.models.own_cache import RoundedCache
from specframe_testing.instrumentation.instrumented import CallListener
from specframe_testing.instrumentation.sequence_records import Account, Accounts
from specframe_testing.instrumentation.ties import Scales, tie_bound

NAMES = KVShape(1, 3, 3, torch.int32)
"""The shape of a name. Stores keep whole numbers as they are, also those that round keys and values."""


class ShadowCache(CallListener):
    """The names of the tokens in every slot of a cache; checks what every query is about to see, and the target's choices."""

    def __init__(
        self, runner: Model, names: KVStore, checks: Accounts, shares: bool, rounded: Rounding | None = None
    ) -> None:
        self._runner, self.names, self.checks, self._shares = runner, names, checks, shares
        self._rounded = rounded
        """What the cache makes of keys and values."""
        self._drafted: dict[tuple[int, int], int] = {}
        """The tokens of chains fed beyond the rows' ends in this round, by sequence and place."""
        self._drafted_in = 0
        self._rows: list[list[int]] = []
        """The rows' own tokens."""
        self._lengths: list[int] = []
        """The lengths of the rows, to which blocks refer: a view of a row may lack more tokens than the row has."""
        self._module = twin(cast(PreTrainedModel, runner.module))
        self._scales = Scales(self._module, rounded)

    def handed(self, batch: Batch) -> None:
        """Check the batch that a layout is about to be handed."""
        self.checks.batch(batch)

    def own(self, batch: Batch, accounts: list[Account]) -> list[list[int]]:
        """Return the rows' own tokens."""
        return [account.tokens for account in accounts]

    def arranged(self, sequences: list[Sequence]) -> None:
        """Arrange the names alike."""
        self.names.arrange(sequences)

    def moved(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        """Move the names alike."""
        self.names.move(sources_BT, targets_BT)

    def placed(self, placement: Placement, batch: Batch, block: Block) -> None:
        """Check the placement."""
        accounts = [self.checks.account(sequence) for sequence in batch.sequences]
        self._rows, self._lengths = self.own(batch, accounts), batch.lengths.tolist()
        depth_BT = block.depth_BT().expand(len(accounts), -1).cpu().numpy()
        places_BT = batch.lengths[:, None] + block.start + depth_BT
        self._note_draft(accounts, block, places_BT)
        if block.end <= 0:
            places_BT[~block.real] = -1
        self._check_positions(accounts, places_BT, placement)
        self._check_slots(accounts, places_BT, placement)
        self._check_visible(accounts, places_BT, block, placement)

    def scored(self, batch: Batch, block: Block, scores: Scores) -> None:
        """Check the target's choices, where it is to be heard."""
        known = isinstance(self._module, PreTrainedModel)  # another one cannot be fed without a cache
        if self._rounded and self._runner.state_layers:
            known = False  # such a model makes its cache itself, and keeps keys as they are
        if block.end >= 0 and known:
            self._check_choices(self.checks.batch(batch), scores.logits_BTV, block)

    def _write(self, placement: Placement, names_BTN: torch.Tensor) -> tuple[np.ndarray, bool]:
        """Write names where the placement says and return those of all slots attended to, (B, S, 3), -1 for none.

        The flag says whether all layers, keys and values alike, hold the same.
        """
        self.names.expect(placement)
        states = (names_BTN + 1).to(NAMES.dtype)[:, None]
        views = [self.names.write(layer, states, states.clone()) for layer in range(len(self._runner.kv_shapes))]
        dense = [gather_slots(view, placement.key_index_BS.shape[1]) for view in views]
        read = [part for view in dense for part in (view.keys, view.values)]
        alike = all(torch.equal(part, read[0]) for part in read)
        return read[0][:, 0].long().cpu().numpy() - 1, alike

    def _note_draft(self, accounts: list[Account], block: Block, places_BT: np.ndarray) -> None:
        """Keep the tokens of a chain fed beyond the rows' ends in this round."""
        if self._drafted_in != self.checks.round_number:
            self._drafted, self._drafted_in = {}, self.checks.round_number
        if block.parents_BT is not None or block.end <= 0:
            return
        for row, (account, ids) in enumerate(zip(accounts, block.ids_BT.tolist(), strict=True)):
            fed = zip(places_BT[row].tolist(), ids, strict=True)
            self._drafted |= {(account.number, place): token for place, token in fed if place >= len(self._rows[row])}

    def _tokens(self, row: int, account: Account, offset: int) -> np.ndarray:
        """Return a row's tokens up to its end + ``offset``: its own tokens, then this round's drafted chain."""
        tokens, end = self._rows[row], self._lengths[row] + offset
        drafted = [self._drafted[account.number, place] for place in range(len(tokens), end)]
        return np.array(tokens[: max(end, 0)] + drafted, dtype=np.int64)

    def _paths(self, row: int, account: Account, block: Block) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield, for each path, its fed tokens' places in the block and all tokens of the row up to the path's end."""
        if block.sees_BTT is None:
            yield np.arange(block.width), self._tokens(row, account, block.end)
            return
        sees_TT = block.sees_BTT[row if len(block.sees_BTT) > 1 else 0].cpu().numpy()
        before, ids_T = self._tokens(row, account, block.start), block.ids_BT[row].cpu().numpy()
        for node in range(block.width):
            yield np.array([node]), np.concatenate([before, ids_T[sees_TT[node]]])

    def _check_positions(self, accounts: list[Account], places_BT: np.ndarray, placement: Placement) -> None:
        positions_BT = placement.positions_BT.expand(places_BT.shape).cpu().numpy() % FAR
        for row, account in enumerate(accounts):
            wrong = np.flatnonzero((positions_BT[row] != places_BT[row]) & (places_BT[row] >= 0))
            if len(wrong):
                place, got = places_BT[row, wrong[0]], positions_BT[row, wrong[0]]
                self._fail("position", row, account, f"the token with {place} tokens before it has position {got}")

    def _check_slots(self, accounts: list[Account], places_BT: np.ndarray, placement: Placement) -> None:
        """Check that nothing else is written to the slot of a token, and that it is the announced one.

        Padding may share a slot that holds none.
        """
        slots_BT = placement.slots_BT.expand(places_BT.shape).cpu().numpy()
        if placement.even:  # attention depends on the announcement, and looks neither at slots nor at indices
            even_T = np.arange(places_BT.shape[1]) + placement.key_index_BS.shape[1] - places_BT.shape[1]
            slots_BT = np.broadcast_to(even_T, places_BT.shape)
        for row, account in enumerate(accounts):
            astray = np.flatnonzero((places_BT[row] >= 0) & (slots_BT[row] != places_BT[row]))
            if placement.in_order and len(astray):
                slot, place = slots_BT[row, astray[0]], places_BT[row, astray[0]]
                self._fail(
                    "slot",
                    row,
                    account,
                    f"slots are said to be in order, and slot {slot} gets the token at place {place}",
                )
            slots, times = np.unique(slots_BT[row], return_counts=True)
            taken = np.intersect1d(slots[times > 1], slots_BT[row][places_BT[row] >= 0])
            if len(taken):
                self._fail(
                    "slot", row, account, f"slot {taken[0]} is written twice by one forward: on a GPU either may remain"
                )

    def _check_visible(
        self, accounts: list[Account], places_BT: np.ndarray, block: Block, placement: Placement
    ) -> None:
        numbers_B1 = np.array([[account.number] for account in accounts])
        ids_BT = block.ids_BT.cpu().numpy()
        names_BTN = np.stack([np.broadcast_to(numbers_B1, places_BT.shape), places_BT, ids_BT], axis=-1)
        names_BTN[places_BT < 0] = -1
        held_BSN, alike = self._write(placement, torch.from_numpy(names_BTN).to(block.ids_BT.device))
        if not alike:
            self._fail("cache", 0, accounts[0], "layers, or keys and values, hold different tokens")
        shown = masks(placement, [None], torch.float32)[None][:, 0]
        visible_BTS = (shown == 0).expand(len(accounts), -1, -1).cpu().numpy()
        for row, account in enumerate(accounts):
            held_SN = inherited_names(held_BSN[row], account, self._sharing(held_BSN[row], account))
            for queries, tokens_P in self._paths(row, account, block):
                real = queries[places_BT[row][queries] >= 0]
                if len(real):
                    view = View(held_SN, visible_BTS[row][real], places_BT[row][real])
                    if fault := view.fault(account.number, tokens_P):
                        self._fail(fault[0], row, account, fault[1])

    def _sharing(self, names_SN: np.ndarray, account: Account) -> dict[int, int]:
        """Return the sequences whose keys a row may read, and how many of their first tokens: parents, and those that begin alike.

        Stores whose rows share memory keep one copy of what is the same in several rows, also of what one of them has generated.
        """
        found = dict.fromkeys(account.parents, account.prompt_length)
        if self._shares:
            others = self.checks.numbered({*names_SN[:, 0].tolist()} - {account.number, -1})
            found |= {other.number: common(other.tokens, account.tokens) for other in others}
        return found

    @torch.inference_mode()
    def _check_choices(self, accounts: list[Account], logits_BTV: torch.Tensor, block: Block) -> None:
        """Compare the target's choices with logits computed without a cache; a near tie may go either way."""
        skipped, real_BT = block.width - logits_BTV.shape[1], block.real
        for row, account in enumerate(accounts):
            for queries, tokens_P in self._paths(row, account, block):
                heard = queries[(queries >= skipped) & real_BT[row, queries]]
                if len(heard):
                    filler = queries[-1] - heard[-1]
                    self._check_path(row, account, logits_BTV[row, heard - skipped], tokens_P[: len(tokens_P) - filler])

    def _check_path(self, row: int, account: Account, logits_TV: torch.Tensor, tokens_P: np.ndarray) -> None:
        """Compare the choices after a path's last tokens with choices computed without a cache."""
        first = len(tokens_P) - len(logits_TV)
        afresh_TV = self._afresh(tokens_P)[first:]
        choices_T1 = logits_TV[: len(afresh_TV)].argmax(-1, keepdim=True)
        short_T = afresh_TV.max(-1).values - afresh_TV.gather(1, choices_T1)[:, 0]
        for step in (short_T > tie_bound(self._module, afresh_TV)).nonzero()[:, 0].tolist():
            ids = tokens_P[: first + step + 1].tolist()
            weighed = self._scales.weigh(ids, [int(choices_T1[step])])
            if not weighed.tie:
                choice = f"the choice after the token at place {first + step} falls {weighed.short:.3g} short"
                self._fail("cache", row, account, f"{choice} of the best logit, computed without a cache")

    def _afresh(self, tokens_P: np.ndarray) -> torch.Tensor:
        """Return the model's logits after each of some tokens, (P, V), as far as its context reaches."""
        ids_P = torch.from_numpy(tokens_P[: self._runner.context]).to(self._runner.device)
        positions_P = torch.arange(len(ids_P), device=ids_P.device)
        takes = takes_position_ids(self._runner.module)
        told: dict[str, Any] = {"position_ids": positions_P[None]} if takes else {}
        if self._rounded:
            told["past_key_values"] = RoundedCache(self._rounded)
        with current_numerics.fed_alone(self._module)(ids_P[None]):
            return self._module(input_ids=ids_P[None], **told, use_cache=bool(self._rounded)).logits[0]

    def _fail(self, invariant: str, row: int, account: Account, detail: str) -> None:
        self.checks.fail(invariant, row, account, f"in the {self._runner.role}, {detail}")


class ViewLedger(ShadowCache):
    """The shadow cache of a cache with a layout of its own, whose drafter feeds it batches of its own making.

    A row's tokens are those of the batch: of another vocabulary, or without the first one. A fork begins with what its parent's row
    has of them.
    """

    def handed(self, batch: Batch) -> None:
        """Check nothing: the batch is not the pool's."""

    def own(self, batch: Batch, accounts: list[Account]) -> list[list[int]]:
        """Return the rows' tokens as the batch has them on the host."""
        return [row[: max(length, 0)].tolist() for row, length in zip(batch.tokens, batch.lengths, strict=True)]

    def _sharing(self, names_SN: np.ndarray, account: Account) -> dict[int, int]:
        return super()._sharing(names_SN, account) | dict.fromkeys(account.parents, len(names_SN))


def inherited_names(names_SN: np.ndarray, account: Account, sharing: Mapping[int, int]) -> np.ndarray:
    """Return the names in a row's slots, those of the first tokens of sequences that share them as the row's own.

    Args:
        names_SN: the names.
        account: of the row's sequence.
        sharing: number of tokens that each of these sequences shares.
    """
    names_SN = names_SN.copy()
    owner_S, place_S, _ = names_SN.T
    for number, tokens in sharing.items():
        owner_S[(owner_S == number) & (place_S < tokens)] = account.number
    return names_SN


def common(one: list[int], other: list[int]) -> int:
    """Return the number of first tokens that two sequences have in common."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@attrs.frozen(eq=False)
class View:
    """View of the queries of one row: the slots they see, with the names in them."""

    names: np.ndarray
    """Name in each slot, (S, 3)."""
    visible: np.ndarray
    """Whether a query sees a slot, bool (T, S)."""
    places: np.ndarray
    """Place of each query's token in its sequence, (T,)."""

    def fault(self, number: int, tokens_P: np.ndarray) -> tuple[str, str] | None:
        """Return the broken invariant and a description, or None.

        Args:
            number: number of the row's sequence.
            tokens_P: the sequence's tokens up to the last fed token.
        """
        owner_S, place_S, token_S = self.names.T
        seen_S, filled_S = self.visible.any(0), place_S >= 0
        foreign_S = filled_S & (owner_S != number)
        known_S = filled_S & (place_S < len(tokens_P))
        right_S = known_S & ~foreign_S
        right_S[right_S] = token_S[right_S] == tokens_P[place_S[right_S]]
        if (seen_S & foreign_S).any():
            return "row", "a query sees keys of another sequence"
        if (stale_S := seen_S & filled_S & ~right_S).any():
            slot = stale_S.argmax()
            return (
                "cache",
                f"slot {slot} holds token {token_S[slot]} of place {place_S[slot]}, where the row has another",
            )
        if (empty_S := seen_S & ~filled_S).any():
            return "mask", f"a query sees slot {empty_S.argmax()}, which holds no token"
        return self._count(right_S, place_S, len(tokens_P))

    def _count(self, right_S: np.ndarray, place_S: np.ndarray, length: int) -> tuple[str, str] | None:
        """Check that every query sees each token up to itself once; ``right_S`` marks the slots of the row's tokens."""
        slots = np.flatnonzero(right_S)
        held_SP = np.zeros((len(right_S), length), dtype=np.int64)
        held_SP[slots, place_S[slots]] = 1
        times_TP = self.visible.astype(np.int64) @ held_SP
        wanted_TP = np.arange(length) <= self.places[:, None]
        if (twice_P := (times_TP > 1).any(0)).any():
            return "cache", f"the token at place {twice_P.argmax()} is cached more than once"
        if (later_P := ((times_TP > 0) & ~wanted_TP).any(0)).any():
            return "mask", f"a query sees the token at place {later_P.argmax()}, which comes after it"
        if (lacking_P := ((times_TP == 0) & wanted_TP).any(0)).any():
            place = lacking_P.argmax()
            if held_SP[:, place].any():
                return "mask", f"the token at place {place} is hidden from a query after it"
            return "cache", f"the token at place {place} is lost"
        return None
