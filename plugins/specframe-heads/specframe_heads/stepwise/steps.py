"""The interface of heads that predict one place after the other.

Tensor names: B rows, N nodes of one depth of a draft, V vocabulary of the head, D size of a feature.
"""

from __future__ import annotations

from typing import Any

import torch


class Steps(torch.nn.Module):
    """Heads for a number of places, and the state that goes from one place to the next along a path of the draft."""

    count: int
    """The number of places that the heads predict: the longest path of a draft."""
    reads_tokens = True
    """Whether the state depends on the path's tokens. If not, all nodes of a depth have the same logits."""

    def step(self, place: int, states_BND: torch.Tensor, tokens_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits (B, N, V) of the tokens after these nodes, and the nodes' states.

        Args:
            place: the depth of the nodes, 0 for a row's last token, the only node of its depth.
            states_BND: the states of the nodes' parents, with ``N`` = 1 if they are the same for all; at place 0 the feature.
            tokens_BN: the tokens of the nodes.
        """
        raise NotImplementedError

    def unrolled(self, features_BTD: torch.Tensor, ids_BT: torch.Tensor, places: int | None = None) -> list[Any]:
        """Return the logits of every place after every token of whole texts, (B, T, V) each: training sees them all at once.

        Args:
            features_BTD: the feature before each token, the first state.
            ids_BT: the tokens. The nodes at place k are the tokens k places on, from the beginning again past the end.
            places: how many, or None for all.
        """
        states, found = features_BTD, []
        for place in range(self.count if places is None else places):
            logits_BTV, states = self.step(place, states, ids_BT.roll(-place, dims=1))
            found.append(logits_BTV)
        return found
