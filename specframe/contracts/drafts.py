"""Drafts, and what becomes of them.

Tensor names carry their shape: B rows, K draft tokens, T = K + 1 tokens per row that the target scores, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import torch

from specframe.contracts.round import Sequence


@attrs.frozen(eq=False)
class Draft:
    """What a drafter proposes for a batch."""

    tokens_BK: torch.Tensor
    logits_BKV: torch.Tensor | None = None
    """The drafter's logits each token was chosen from, where it has a distribution."""

    @property
    def length(self) -> int:
        """Number of tokens proposed for every row."""
        return self.tokens_BK.shape[1]


@attrs.frozen(eq=False)
class Verdict:
    """What stands of a draft: per row, ``accepted_B`` draft tokens and one token of the target's own.

    ``tokens_BT`` (B, K + 1) holds the accepted tokens and the bonus token from place 0; what follows them means nothing.
    """

    accepted_B: torch.Tensor
    tokens_BT: torch.Tensor
    _host: list[np.ndarray] = attrs.field(factory=list, init=False, repr=False)
    _checks: list[Callable[[np.ndarray, np.ndarray], None]] = attrs.field(factory=list, init=False, repr=False)
    _undecided: list[torch.Tensor] = attrs.field(factory=list, init=False, repr=False)

    def host(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (accepted, tokens) on the host. The first call is the round's one synchronisation."""
        if not self._host:
            width = self.tokens_BT.shape[1] + 1
            packed = torch.cat([self.accepted_B[:, None], self.tokens_BT, *self._undecided], dim=1).cpu().numpy()
            self._host.extend((packed[:, 0], packed[:, 1:width], packed[:, width:]))
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

    def once_on_host(self, check: Callable[[np.ndarray, np.ndarray], None]) -> None:
        """Have ``check(accepted, tokens)`` called as soon as both are on the host; it raises where they cannot be."""
        self._checks.append(check)
        if self._host:
            check(*self._host[:2])


@attrs.frozen(eq=False)
class RoundReport:
    """What observers are told once per round. Arrays are per row, on the host."""

    number: int
    sequences: list[Sequence]
    prefill: bool
    draft: Draft
    verdict: Verdict
    lengths: np.ndarray
    """Lengths before the round."""
    accepted: np.ndarray
    """Accepted draft tokens that stand."""
    gained: np.ndarray
    """Tokens each row gained, cut at its stop."""
    finished: list[Sequence]
    logits_BTV: torch.Tensor | None = None
    """The target's own logits of this round, on the device, where the next round may write over them."""
    scores_BTV: torch.Tensor | None = None
    """The logits after each row's processors."""
