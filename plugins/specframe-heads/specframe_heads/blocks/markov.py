"""DSpark's two heads over a block's states (arXiv 2607.05147): a Markov head for the logits, a confidence head for their worth.

Slot k of the block predicts the token after it. The Markov head adds to the slot's logits what the token before, x_{k-1}, makes
likely: W2 W1[x_{k-1}], of a low rank r. The confidence head predicts from [h_k; W1[x_{k-1}]] how likely the slot's token is
accepted. Both look at tokens before the slot's own, never at it or a later one: what they decide may not bias the output.

Tensor names carry their shape: B rows, K slots, H hidden size, R rank, V draft vocabulary. Names of modules are the files'.
"""

from __future__ import annotations

import torch
from torch import nn

KINDS = ("vanilla", "gated", "rnn")
"""The kinds of Markov heads."""


class MarkovHead(nn.Module):
    """A bias of logits by the token before.

    Args:
        known: number of ids of the token before, those of the target.
        vocabulary: number of logits.
        rank: R.
        hidden: H.
        kind: "vanilla": of that token alone; "gated": gated by the slot's state; "rnn": of all tokens of the block before.
    """

    def __init__(self, known: int, vocabulary: int, rank: int, hidden: int, kind: str = "vanilla") -> None:
        super().__init__()
        self.kind, self.rank = kind, rank
        self.markov_w1 = nn.Embedding(known, rank)
        self.markov_w2 = nn.Linear(rank, vocabulary, bias=False)
        if kind == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank)
        elif kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank)

    def initial(self, rows: int) -> torch.Tensor:
        """Return the state (B, R) before the first slot."""
        return self.markov_w1.weight.new_zeros(rows, self.rank)

    def step(
        self, state_BR: torch.Tensor, before_B: torch.Tensor, hidden_BH: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next state (B, R) and the bias (B, V) of one slot.

        Args:
            state_BR: the state that the slot before returned; only "rnn" has one.
            before_B: the token before the slot's own.
            hidden_BH: the slot's state in the backbone.
        """
        embedded_BR = self.markov_w1(before_B)
        if self.kind == "gated":
            gate_BR = self.gate_proj(torch.cat([hidden_BH, embedded_BR], dim=-1)).sigmoid()
            return state_BR, self.markov_w2(gate_BR * embedded_BR)
        if self.kind == "vanilla":
            return state_BR, self.markov_w2(embedded_BR)
        barrier = self.joint_proj(torch.cat([state_BR, embedded_BR, hidden_BH], dim=-1))
        gate_BR, candidate_BR, output_BR = barrier.chunk(3, dim=-1)
        gate_BR = gate_BR.sigmoid()
        state_BR = gate_BR * state_BR + (1 - gate_BR) * candidate_BR.tanh()
        return state_BR, self.markov_w2(output_BR.tanh())


class ConfidenceHead(nn.Module):
    """Predicts the chance that a slot's token is accepted, given that all tokens before it are.

    Args:
        width: H, and R more where the token before is looked at.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, states_BKF: torch.Tensor) -> torch.Tensor:
        """Return the chances, (B, K), from the states and, where they are looked at, the tokens before."""
        return self.proj(states_BKF).squeeze(-1).float().sigmoid()


def confident(chances_BK: torch.Tensor, least: float) -> torch.Tensor:
    """Return the slots of each row before the first whose chance is below ``least``, (B,).

    Whether slot k is submitted depends on the chances of slots up to k, so on tokens before k alone.
    """
    return (chances_BK >= least).long().cumprod(1).sum(1)


def scheduled(chances_BK: torch.Tensor, token_cost: float) -> torch.Tensor:
    """Return the slots of each row that are worth the target's time, (B,): DSpark's scheduler.

    Slot j of a row is accepted with the chance a_j, the product of its chances up to j. Slots of all rows are admitted in falling
    order of a_j while the expected tokens per second, (B + sum of a) / (1 + token_cost * slots), do not fall. Admission ends for
    good with the first slot that lowers the rate: a search beyond it would look at the chances of later slots, which depend on the
    very tokens that are verified, and bias the output.

    Args:
        chances_BK: predicted acceptance of each slot.
        token_cost: time of one more token in the target's pass, in units of a pass that has none.
    """
    rows, slots = chances_BK.shape
    stand_BK = chances_BK.cumprod(1)
    index_N = stand_BK.flatten().argsort(descending=True, stable=True)  # a tie keeps a row's slots in order
    gained_N = rows + stand_BK.flatten()[index_N].double().cumsum(0)
    rate_N = gained_N / (1 + token_cost * torch.arange(1, len(index_N) + 1, device=index_N.device))
    before_N = torch.cat([rate_N.new_full((1,), rows), rate_N[:-1]])
    admitted_N = (rate_N >= before_N).long().cumprod(0)
    return torch.zeros(rows, dtype=torch.long, device=index_N.device).index_add_(0, index_N // slots, admitted_N)
