"""Drafts, their verdicts, and the reports of rounds.

Tensor names carry their shape: B rows, N nodes of a draft, K nodes of its longest path, T tokens fed or scored per row,
V vocabulary, D size of a hidden state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import attrs
import numpy as np
import torch
import torch.nn.functional as F

from specframe.contracts.round import Batch, Sequence


@attrs.frozen
class Budget:
    """Limits of a round's draft: the length of its longest path, and the number of its nodes. 0 is plain decoding."""

    depth: int
    nodes: int = attrs.field()

    @nodes.default
    def _of_a_chain(self) -> int:
        return self.depth


@attrs.frozen(eq=False)
class Draft:
    """The tokens that a drafter proposes for a batch: a tree for every row, a chain unless ``parents_BN`` says otherwise."""

    tokens_BN: torch.Tensor
    """The tokens, each after its parent."""
    logits_BNV: torch.Tensor | None = None
    """The drafter's logits that each token was sampled from; None: the tokens were not sampled and have probability 1."""
    parents_BN: torch.Tensor | None = None
    """The node that each token follows, -1 for the row's last token; None: each follows the one before it."""
    counts_B: torch.Tensor | None = None
    """Number of real nodes of each row, which come first. Other nodes are filler, never accepted or counted. None: no filler."""
    depth: int = attrs.field()
    """Nodes of the longest path, known on the host so that the shapes of a round are static."""

    @depth.default
    def _all_in_one_path(self) -> int:
        return (
            self.tokens_BN.shape[1] if getattr(self.tokens_BN, "ndim", 0) == 2 else 0
        )  # the guard reports a wrong shape

    @property
    def nodes(self) -> int:
        """The number of tokens proposed for every row, filler included."""
        return self.tokens_BN.shape[1]


@attrs.frozen(eq=False, slots=False)
class Block:
    """The tokens fed to a model in one forward, and their places in the rows.

    The *order* of a token is the number of its row's tokens before it. The first token of the block has the order
    ``lengths_B + start``. Each further token follows the token before it, or its parent. Places before a row's first token are
    padding.
    """

    ids_BT: torch.Tensor
    start: int = 0
    parents_BT: torch.Tensor | None = None
    """Place in the block of each token's parent, always an earlier place; -1: the row's token before the block; None: a chain."""
    extra: Mapping[str, torch.Tensor] = attrs.Factory(dict)
    """Further inputs of the model, by the name of its argument, one for each token: (B, T, ...)."""
    counts: np.ndarray | None = None
    """Number of real tokens of each row, on the host; None: all are real, or it is not known. See :attr:`real`."""

    @property
    def width(self) -> int:
        """The number of tokens fed per row, T."""
        return self.ids_BT.shape[1]

    @property
    def end(self) -> int:
        """Order after the last token of a chain, minus the row's length."""
        return self.start + self.width

    @property
    def real(self) -> np.ndarray:
        """The places that hold a real token, (B, T), on the host.

        In a block of a row's own tokens (``end`` up to 0) they come last: what precedes them is padding. In a block that goes beyond
        a row's end they come first: what follows them is filler.
        """
        places_T, (rows, width) = np.arange(self.width), self.ids_BT.shape
        if self.counts is None:
            return np.ones((rows, width), dtype=bool)
        if self.end <= 0:
            return places_T >= width - self.counts[:, None]
        return places_T < self.counts[:, None]

    @functools.cached_property
    def sees_BTT(self) -> torch.Tensor | None:
        """Whether a place of the block sees another place (last axis): itself and its ancestors; None for a chain."""
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
    """Hidden states (B, T', D) of the layers that were asked for, of all T' tokens fed; layers as transformers numbers
    ``hidden_states``: 0 is the embedding. One number after the last is the last layer's output before the final norm."""


@attrs.frozen(eq=False)
class Verdict:
    """The accepted part of a draft: per row, ``accepted_B`` draft tokens along one path and the target's bonus token."""

    accepted_B: torch.Tensor
    tokens_BT: torch.Tensor
    """The path's accepted tokens, then the bonus token, (B, K + 1) for a draft of depth K; what follows them means nothing."""
    path_BT: torch.Tensor | None = None
    """The nodes of the path, (B, K): the first ``accepted_B`` mean something. None: the draft is a chain."""
    _host: list[np.ndarray] = attrs.field(factory=list, init=False, repr=False)
    _checks: list[Callable[[np.ndarray, np.ndarray], None]] = attrs.field(factory=list, init=False, repr=False)
    _undecided: list[torch.Tensor] = attrs.field(factory=list, init=False, repr=False)
    _counts: list[torch.Tensor] = attrs.field(factory=list, init=False, repr=False)

    def host(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (accepted, tokens) on the host. The first call is the round's one synchronisation."""
        if not self._host:
            counts = [counts_B[:, None] for counts_B in self._counts]
            parts = [self.accepted_B[:, None], self.tokens_BT, *self._undecided, *counts]
            packed, width = torch.cat(parts, dim=1).cpu().numpy(), self.tokens_BT.shape[1] + 1
            undecided = width + sum(mask_BT.shape[1] for mask_BT in self._undecided)
            self._host.extend((packed[:, 0], packed[:, 1:width], packed[:, width:undecided], packed[:, undecided:]))
            for check in self._checks:
                check(*self._host[:2])
        return self._host[0], self._host[1]

    def mark(self, undecided_BT: torch.Tensor) -> None:
        """Say at which places no token can be chosen, (B, K + 1), bool; it goes to the host with the rest.

        The first mark holds.
        """
        if not self._undecided:
            self._undecided.append(undecided_BT.to(self.tokens_BT.dtype))

    @property
    def undecided(self) -> np.ndarray | None:
        """At which places no token can be chosen, (B, K + 1), on the host; None where all could be."""
        if not self._undecided:
            return None
        self.host()
        packed = self._host[2] if self._host[2].size else self._undecided[0].cpu().numpy()  # marked after the transfer
        return packed.astype(bool)

    def bring(self, counts_B: torch.Tensor) -> None:
        """Copy the draft's counts to the host together with the verdict."""
        self._counts.append(counts_B)

    @property
    def counts(self) -> np.ndarray | None:
        """Number of real draft tokens of each row, (B,), on the host; None: no filler."""
        if not self._counts:
            return None
        self.host()
        return self._host[3][:, 0] if self._host[3].size else self._counts[0].cpu().numpy()

    def within(self, counts_B: torch.Tensor) -> Verdict:
        """Return the verdict without filler: at most each row's real nodes are accepted."""
        if self.path_BT is None:
            return attrs.evolve(self, accepted_B=self.accepted_B.minimum(counts_B))
        meant_B = (self.path_BT < counts_B[:, None]).long().cumprod(1).sum(1)
        return attrs.evolve(self, accepted_B=self.accepted_B.minimum(meant_B))

    def once_on_host(self, check: Callable[[np.ndarray, np.ndarray], None]) -> None:
        """Call ``check(accepted, tokens)`` as soon as both are on the host. The check raises an error for impossible values."""
        self._checks.append(check)
        if self._host:
            check(*self._host[:2])


def along(verdict: Verdict, logits_BTV: torch.Tensor) -> torch.Tensor:
    """Return the logits after a row's last token and after each node of the verdict's path, (B, K + 1, V)."""
    if verdict.path_BT is None:
        return logits_BTV
    places_BT = F.pad(verdict.path_BT + 1, (1, 0))
    return logits_BTV.gather(1, places_BT[..., None].expand(-1, -1, logits_BTV.shape[-1]))


@attrs.frozen(eq=False)
class Outcome:
    """A finished round for drafters, told before the next round; also a piece of a prompt that the target has read."""

    batch: Batch
    """The rows, with their lengths before the round."""
    draft: Draft
    scores: Scores
    verdict: Verdict | None
    """None: a piece of a prompt was read, and more of it is to come."""


@attrs.frozen(eq=False)
class RoundReport:
    """A finished round for observers. Arrays have one entry per row and are on the host."""

    number: int
    sequences: list[Sequence]
    prefill: bool
    draft: Draft
    verdict: Verdict
    lengths: np.ndarray
    """Lengths before the round."""
    drafted: np.ndarray
    """Number of real draft tokens of each row, up to the row's limit."""
    accepted: np.ndarray
    """Number of accepted draft tokens that were committed."""
    gained: np.ndarray
    """Number of tokens that each row gained, cut at its stop."""
    finished: list[Sequence]
    logits_BTV: torch.Tensor | None = None
    """The target's logits of this round along the accepted path, (B, K + 1, V), on the device. The next round may overwrite
    them."""
    scores_BTV: torch.Tensor | None = None
    """The logits after each row's processors."""
