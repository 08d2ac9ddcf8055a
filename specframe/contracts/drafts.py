"""Drafts, their acceptance results, and the transfer of both to the host.

Tensor names carry their shape: B rows, N nodes of a draft, K nodes of its longest path, T tokens fed or scored per row,
V vocabulary, D size of a hidden state.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
import numpy as np
import torch
import torch.nn.functional as F

from specframe.contracts.round import Batch, Kept
from specframe.devices import kinds

SAME_NUMBERS = attrs.cmp_using(eq=np.array_equal)


class StoppingRule(Protocol):
    """Ends rows' drafts by the distributions that their tokens are drawn from, before each is drawn: so the output stays the
    target's (docs/budgets.md)."""

    def goes_on(self, batch: Batch, place: int, logits_BV: torch.Tensor) -> np.ndarray:
        """Return which of the rows that draft do so at a place after their ends, (B,) bool, on the host.

        Called once for each place, in order, with the drafter's logits after the rows' processors; looking at them is a wait.
        """


@attrs.frozen
class Budget:
    """Limits of a round's draft: the length of its longest path, and the number of its nodes. 0 is plain decoding. Rows may have
    limits of their own, on the host: what is drafted beyond them is cut."""

    depth: int
    nodes: int = attrs.field()
    depths_B: np.ndarray | None = attrs.field(default=None, eq=SAME_NUMBERS, hash=False)
    """The depth of each row's draft, up to ``depth``, or None for that for all."""
    nodes_B: np.ndarray | None = attrs.field(default=None, eq=SAME_NUMBERS, hash=False)
    """The nodes of each row's draft, up to ``nodes``, of which a drafter puts the best first, or None for that for all."""
    stopping: StoppingRule | None = attrs.field(default=None, eq=False, hash=False)
    """Ends rows' chains while they are drafted. Drafters that offer "stops" ask it, or None if nothing ends them."""

    @nodes.default
    def _of_a_chain(self) -> int:
        return self.depth

    def of(self, rows: list[int]) -> Budget:
        """Return the budget of some of the rows."""
        own = {name: one[rows] for name in ("depths_B", "nodes_B") if (one := getattr(self, name)) is not None}
        return attrs.evolve(self, **own) if own else self


@attrs.frozen(eq=False, slots=False)
class Draft:
    """The tokens that a drafter proposes for a batch: a tree for every row, a chain unless ``parents_BN`` says otherwise."""

    tokens_BN: torch.Tensor
    """The tokens, each after its parent."""
    logits_BNV: torch.Tensor | None = None
    """The drafter's logits that each token was sampled from, or None if the tokens were not sampled and have probability 1."""
    parents_BN: torch.Tensor | None = None
    """The node that each token follows, -1 for the row's last token, or None if each follows the one before it."""
    counts_B: torch.Tensor | None = None
    """Number of real nodes of each row, which come first. Other nodes are padding, never accepted or counted. None: no padding."""
    counts: np.ndarray | None = None
    """On the host, the most nodes of each row that may be real: forwards may leave out those beyond, and the loop makes
    ``counts_B`` of it where a drafter has not. None: the host knows of no padding."""
    depth: int = attrs.field()
    """Nodes of the longest path, known on the host so that the shapes of a round are static."""

    @depth.default
    def _all_in_one_path(self) -> int:
        tokens_BN = self.tokens_BN  # the guard reports a wrong shape
        return tokens_BN.shape[1] if getattr(tokens_BN, "ndim", 0) == 2 else 0

    @functools.cached_property
    def nodes(self) -> int:
        """The number of tokens proposed for every row, padding included."""
        return self.tokens_BN.shape[1]

    @property
    def above_BN(self) -> torch.Tensor:
        """The node that each node follows, -1 for the row's last token, (B, N), also of a chain."""
        if self.parents_BN is not None:
            return self.parents_BN.expand_as(self.tokens_BN)
        return torch.arange(-1, self.nodes - 1, device=self.tokens_BN.device).expand_as(self.tokens_BN)


@attrs.frozen(eq=False, slots=False)
class Block:
    """The tokens fed to a model in one forward, and their places in the rows.

    The first token has the index ``lengths_B + start`` among its row's tokens, each further one follows the token before it, or its
    parent. Places before a row's first token are padding.
    """

    ids_BT: torch.Tensor
    start: int = 0
    parents_BT: torch.Tensor | None = None
    """The place of each token's parent, an earlier one, or -1 for the row's token before the block. Or None for a chain."""
    extra: Mapping[str, torch.Tensor] = attrs.Factory(dict)
    """Further inputs of the model, by the name of its argument, one for each token: (B, T, ...)."""
    counts: np.ndarray | None = None
    """Number of real tokens of each row, on the host, or None if all are real, or it is not known. See :attr:`real`."""

    @property
    def width(self) -> int:
        """The number of tokens fed per row, T."""
        return self.ids_BT.shape[1]

    @property
    def tokens(self) -> int:
        """The number of real tokens of all rows, as far as the host knows."""
        return self.ids_BT.numel() if self.counts is None else int(self.counts.sum())

    @property
    def end(self) -> int:
        """Index after the last token of a chain, minus the row's length."""
        return self.start + self.width

    @property
    def real(self) -> np.ndarray:
        """The places that hold a real token, (B, T), on the host: the last ones in a block of rows' own tokens (``end`` up to 0),
        after padding; else the first ones, before padding."""
        places_T, (rows, width) = np.arange(self.width), self.ids_BT.shape
        if self.counts is None:
            return np.ones((rows, width), dtype=bool)
        if self.end <= 0:
            return places_T >= width - self.counts[:, None]
        return places_T < self.counts[:, None]

    @functools.cached_property
    def sees_BTT(self) -> torch.Tensor | None:
        """Whether a token of the block sees another one (last axis): itself and its ancestors, or None for a chain."""
        if self.parents_BT is None:
            return None
        places_T = torch.arange(self.width, device=self.ids_BT.device)
        above_BT = self.parents_BT.where(self.parents_BT >= 0, places_T)  # a root is its own parent
        sees_BTT = (places_T[:, None] == places_T).expand(len(above_BT), -1, -1)
        for _ in range((self.width - 1).bit_length()):  # paths of one place, of two, of four, ...
            sees_BTT = sees_BTT | sees_BTT.gather(1, above_BT[..., None].expand_as(sees_BTT))
            above_BT = above_BT.gather(1, above_BT)
        return sees_BTT

    def depth_BT(self) -> torch.Tensor:
        """Return the number of places in the block before each token on its path, (B, T) or (1, T)."""
        if self.sees_BTT is None:
            return torch.arange(self.width, device=self.ids_BT.device)[None]
        return self.sees_BTT.sum(-1) - 1


@attrs.frozen(eq=False)
class Scores:
    """The target's answer to a block."""

    logits_BTV: torch.Tensor
    """Logits after each of the last T tokens fed."""
    hidden: Mapping[int, torch.Tensor] = attrs.Factory(dict)
    """Hidden states (B, T', D) of the layers that were asked for, of all T' tokens fed, as transformers numbers
    ``hidden_states``: 0 is the embedding. One number after the last is the last layer's output before the final norm."""
    computed: int | None = None
    """The number of tokens that were computed for it, or None for all of the block."""
    mixed: Scores | None = None
    """Those of the prefill chunk (``Batch.mixed``) that was fed in the same forward, without logits, or None if none was."""


@attrs.frozen(eq=False)
class Acceptance:
    """The accepted part of a draft: per row, ``accepted_B`` draft tokens along one path and the target's bonus token."""

    accepted_B: torch.Tensor
    tokens_BT: torch.Tensor
    """The path's accepted tokens, then the bonus token, (B, K + 1) for a draft of depth K; what follows them means nothing."""
    path_BT: torch.Tensor | None = None
    """The nodes of the path, (B, K): the first ``accepted_B`` mean something. None: the draft is a chain."""

    def within(self, draft: Draft) -> Acceptance:
        """Return the acceptance result without padding, and with a path of nodes that there are. The loop calls it: a rule that
        counted padding would give right tokens and wrong figures."""
        path_BT, counts_B = self.path_BT, draft.counts_B
        if path_BT is not None:
            path_BT = path_BT.clamp(0, draft.nodes - 1)
        if counts_B is None:
            return self if path_BT is None else Acceptance(self.accepted_B, self.tokens_BT, path_BT)
        real_B = counts_B if path_BT is None else (path_BT < counts_B[:, None]).long().cumprod(1).sum(1)
        return Acceptance(self.accepted_B.minimum(real_B), self.tokens_BT, path_BT)


def along_path(acceptance: Acceptance, logits_BTV: torch.Tensor) -> torch.Tensor:
    """Return the logits after a row's last token and after each node of the acceptance result's path, (B, K + 1, V)."""
    if acceptance.path_BT is None:
        return logits_BTV
    places_BT = F.pad(acceptance.path_BT + 1, (1, 0))
    return logits_BTV.gather(1, places_BT[..., None].expand(-1, -1, logits_BTV.shape[-1]))


@attrs.frozen(eq=False)
class Numbers:
    """The numbers of a round on the host: arrays of int64 with one entry per row."""

    accepted: np.ndarray
    """``accepted_B`` of the acceptance result, (B,)."""
    tokens: np.ndarray
    """``tokens_BT`` of the acceptance result, (B, K + 1)."""
    path: np.ndarray | None = None
    """``path_BT`` of the acceptance result, (B, K), or None if the draft is a chain."""
    counts: np.ndarray | None = None
    """Number of real draft tokens, (B,), or None for no padding."""
    undecided: np.ndarray | None = None
    """Whether no token can be chosen at a place, (B, K + 1), or None if one can be chosen at every place."""
    undrawn: np.ndarray | None = None
    """Whether draft tokens were drawn from logits that are no distribution, (B,), or None if none could be."""
    by_rule: np.ndarray | None = None
    """``accepted_B`` as the acceptance rule returned it, padding included, (B,). Like all that follows, it comes only where guards
    check it."""
    rule_tokens: np.ndarray | None = None
    """``tokens_BT`` as the acceptance rule returned it, (B, K + 1)."""
    rule_path: np.ndarray | None = None
    """``path_BT`` as the acceptance rule returned it, (B, K), for a tree."""
    drafted: np.ndarray | None = None
    """The draft's tokens, (B, N)."""
    parents: np.ndarray | None = None
    """The draft's parents, (B, N), for a tree."""


@attrs.frozen(eq=False, slots=False)
class Transfer:
    """A round's draft with its acceptance result, and their numbers on the host: :attr:`host` is the round's one synchronisation,
    where whoever asks first waits, and everything comes in one copy."""

    draft: Draft
    acceptance: Acceptance
    """What is accepted of the draft; no padding is."""
    by_rule: Acceptance = attrs.field()
    """The acceptance rule's result, as it was returned."""
    undecided_BT: torch.Tensor | None = None
    """Whether no token can be chosen at a place, (B, K + 1), bool, or None if one can be chosen at every place."""
    undrawn_B: torch.Tensor | None = None
    """Whether a row's draft tokens were drawn from logits that are no distribution, (B,), bool, or None if none could be."""
    check: Check | None = None
    """Checks the numbers as soon as they are on the host, and raises an error for impossible ones, or None if they have been
    checked."""
    committed: bool = False
    """Whether the acceptance result is the alignment's own, in place of the acceptance rule's."""

    @by_rule.default
    def _as_it_stands(self) -> Acceptance:
        return self.acceptance

    def of(self, acceptance: Acceptance) -> Transfer:
        """Return the transfer of an alignment's own acceptance result. Numbers that are on the host already come once more."""
        return attrs.evolve(self, acceptance=acceptance, committed=True)

    @functools.cached_property
    def kept(self) -> Kept:
        """What the target's cache keeps: each row's own tokens, and the accepted ones. The same object every time."""
        if not self.draft.nodes:
            return Kept(0)
        whole = weakref.ref(self)  # else each would hold the other, and a round's logits until Python collects garbage

        def accepted() -> np.ndarray:
            transfer = whole()
            assert transfer is not None, "the accepted tokens are in a round's transfer, which is gone"
            return transfer.host.accepted

        return Kept(self.acceptance.accepted_B, self.acceptance.path_BT, accepted)

    @functools.cached_property
    def _arriving(self) -> Callable[[], dict[str, np.ndarray]]:
        """Returns the numbers, which have been sent to the host, when they are there."""
        return kinds.sent_to_host(self._parts())

    def send(self) -> None:
        """Send the numbers to the host, without synchronisation, if they are not there."""
        if kinds.of(self.acceptance.accepted_B.device).queues:
            self._arriving  # noqa: B018

    def joined(self) -> tuple[torch.Tensor, kinds.Forms]:
        """Return all numbers, and the draft's tokens, side by side in one tensor, and how it is taken apart."""
        return kinds.joined_parts(self._parts() | {"drafted": self.draft.tokens_BN})

    @classmethod
    def of_joined(cls, joined: torch.Tensor, forms: kinds.Forms, check: Check | None) -> Transfer:
        """Return the transfer of numbers of a chain that are side by side, which are sent to the host."""
        found = kinds.parted(joined, forms)
        made = cls(Draft(found["drafted"]), Acceptance(found["accepted"], found["tokens"]), check=check)
        vars(made)["_arriving"] = kinds.send(joined, forms)
        return made

    @functools.cached_property
    def host(self) -> Numbers:
        """The numbers on the host."""
        if "_arriving" in vars(self) or kinds.of(self.acceptance.accepted_B.device).queues:
            numbers = Numbers(**self._arriving())
        else:
            numbers = Numbers(**{name: part.numpy() for name, part in self._parts().items()})
        if self.check:
            self.check(self, numbers)
        return numbers

    def _parts(self) -> dict[str, torch.Tensor]:
        """Return the tensors of all numbers that there are, with those that are checked where they are."""
        draft, acceptance = self.draft, self.acceptance
        parts: dict[str, torch.Tensor | None] = {
            "accepted": acceptance.accepted_B,
            "tokens": acceptance.tokens_BT,
            "path": acceptance.path_BT,
            "counts": draft.counts_B,
            "undecided": self.undecided_BT,
            "undrawn": self.undrawn_B,
        }
        if self.check:
            parts["by_rule"] = self.by_rule.accepted_B
            parts["rule_tokens"] = self.by_rule.tokens_BT
            parts["rule_path"] = self.by_rule.path_BT
            parts["drafted"] = draft.tokens_BN
            parts["parents"] = None if draft.parents_BN is None else draft.above_BN
        return {name: part for name, part in parts.items() if part is not None}


def some_rows(whole: Any, rows: list[int], count: int) -> Any:
    """Return a batch, or what is said of one of ``count`` rows, of some of them alone."""
    if isinstance(whole, list | np.ndarray | torch.Tensor) and len(whole) == count:
        if isinstance(whole, list):
            return [whole[row] for row in rows]
        return whole[rows] if isinstance(whole, np.ndarray) else whole[kinds.constant(tuple(rows), whole.device)]
    if not isinstance(whole, Batch | Draft | Acceptance | Numbers | Transfer):
        return whole
    names = [field.name for field in attrs.fields(type(whole)) if field.name != "mixed"]  # that has rows of its own
    made = attrs.evolve(whole, **{name: some_rows(getattr(whole, name), rows, count) for name in names})
    if isinstance(whole, Transfer):
        vars(made)["host"] = some_rows(whole.host, rows, count)
    return made


Check = Callable[[Transfer, Numbers], None]
"""Checks the numbers of a transfer."""
