"""The tokens before each place of a batch, as logits processors are shown them.

Tensor names carry their shape: B rows, T places of a row, R places, N draft tokens, X columns of a row's tokens and its draft, L
tokens that are shown. A place has the number ``row * T + place``; its *prefix* is all tokens before it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence as Rows
from typing import Any

import numpy as np
import torch

from specframe.contracts.constraints import paths
from specframe.contracts.round import Batch
from specframe.devices import kinds
from specframe.devices.kinds import constant, on_device

NO_TOKEN = -1
"""Precedes the first token of a prefix that is shorter than others."""


class Prefixes:
    """The tokens before each place of a batch: the ids that lead, the row's own tokens, the draft tokens on the place's path.

    Args:
        batch: the rows.
        leads: for each row the ids put before its own.
        drafted_BN: the draft tokens of each row.
        count: places per row, T, at most N + 1: that after each of the last draft tokens, and for N + 1 that after the row's last
            token, too.
        parents_BN: the draft token that each draft token follows, -1: the row's last token; (B, N) or (1, N), or None for a chain.
    """

    def __init__(
        self,
        batch: Batch,
        leads: Rows[tuple[int, ...]],
        drafted_BN: torch.Tensor,
        count: int,
        parents_BN: torch.Tensor | None = None,
    ) -> None:
        self.count = count
        self._batch, self._leads, self._drafted_BN, self._parents_BN = batch, leads, drafted_BN, parents_BN

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """The number of tokens before each place, (B, T)."""
        return self._own[:, None] + self._depths

    @functools.cached_property
    def _own(self) -> np.ndarray:
        """The number of tokens of each row, with those that lead."""
        return self._batch.lengths + self._led

    @functools.cached_property
    def _led(self) -> np.ndarray:
        """The number of ids that lead in each row."""
        return np.array([len(lead) for lead in self._leads])

    @functools.cached_property
    def _width(self) -> int:
        """The most ids that lead."""
        return int(self._led.max())

    @property
    def _longest(self) -> int:
        """The column of the first draft token."""
        return self._width + self._batch.longest

    @functools.cached_property
    def _paths(self) -> np.ndarray:
        """The draft tokens on the path to each place, then -1, (B, T, N) or (1, T, N)."""
        nodes = self._drafted_BN.shape[1]
        parents: Any = [range(-1, nodes - 1)]
        if self._parents_BN is not None and kinds.of(self._parents_BN.device).values:
            parents = self._parents_BN.tolist()
        return np.stack([table(tuple(above)) for above in parents])[:, nodes + 1 - self.count :]

    @functools.cached_property
    def _depths(self) -> np.ndarray:
        """The number of draft tokens before each place, (B, T) or (1, T)."""
        return (self._paths >= 0).sum(2)

    @functools.cached_property
    def _tokens_BX(self) -> torch.Tensor:
        """The ids that lead, up to one column, from there on the row's own tokens, and then the draft tokens."""
        parts = [self._batch.tokens_BS[:, : self._batch.longest], self._drafted_BN]
        if self._width:
            led = [[0] * (self._width - len(lead)) + [*lead] for lead in self._leads]
            parts.insert(0, on_device(led, self._drafted_BN.device))
        return torch.cat(parts, dim=1)

    def blank(self, places: int, length: int) -> torch.Tensor:
        """Return ids without meaning, (``places``, ``length``), for a processor that looks at their number only."""
        return self._drafted_BN.new_zeros((1, 1)).expand(places, length)

    def exact(self, place: int) -> torch.Tensor:
        """Return all tokens before a place, (1, L)."""
        row, column = divmod(place, self.count)
        parts = [self._batch.tokens_BS[row : row + 1, : self._batch.lengths[row]]]
        if self._leads[row]:
            parts.insert(0, constant(self._leads[row], self._drafted_BN.device)[None])
        if drafted := self._drafted_BN.shape[1]:
            if self._parents_BN is None:
                parts.append(self._drafted_BN[row : row + 1, : drafted + 1 - self.count + column])
            else:
                path = self._paths[row % len(self._paths), column]
                parts.append(self._drafted_BN[row : row + 1, on_device(path[path >= 0], self._drafted_BN.device)])
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def occurring(self, places: np.ndarray, since: np.ndarray) -> torch.Tensor:
        """Return the tokens before places, in any order and however often, (R, X).

        Args:
            places: their numbers.
            since: the number of first tokens of each prefix that are left out, (R,); at least one token has to be left.
        """
        rows, columns = places // self.count, places % self.count
        first = self._width - self._led[rows]
        end = first + self._own[rows]
        paths, depths = self._of(rows, columns)
        last = np.where(depths > 0, self._longest + paths.max(1, initial=-1), end - 1)  # a node comes after its parents
        on_path = np.arange(paths.shape[1]) == paths[:, :, None]
        sent = np.column_stack([rows, last, first + since, end, on_path.any(1)])
        sent_RX = on_device(sent, self._drafted_BN.device)  # all in one copy
        (rows_R1, last_R1, first_R1, end_R1), on_path_RN = sent_RX[:, :4, None].unbind(1), sent_RX[:, 4:]
        column_X = torch.arange(self._longest, device=rows_R1.device)
        read_RX = torch.cat([(column_X >= first_R1) & (column_X < end_R1), on_path_RN > 0], dim=1)
        return self._tokens_BX[rows_R1[:, 0]].where(read_RX, self._tokens_BX[rows_R1, last_R1])

    def ids(self, places: np.ndarray, length: int) -> torch.Tensor:
        """Return the last ``length`` tokens before places, (R, L); :data:`NO_TOKEN` before the first token of a shorter prefix."""
        rows, columns = places // self.count, places % self.count
        first = self._width - self._led[rows]
        paths, depths = self._of(rows, columns)
        sent = np.column_stack([rows, self._own[rows] + depths - length, self._own[rows], first, paths])
        sent_RX = on_device(sent, self._drafted_BN.device)  # all in one copy
        (rows_R1, begin_R1, own_R1, first_R1), paths_RN = sent_RX[:, :4, None].unbind(1), sent_RX[:, 4:]
        order_RL = begin_R1 + torch.arange(length, device=begin_R1.device)
        index_RL = order_RL.clamp(min=0) + first_R1
        if most := min(paths_RN.shape[1], length):  # draft tokens are among the last
            beyond_RN = order_RL[:, length - most :] - own_R1
            node_RN = paths_RN.gather(1, beyond_RN.clamp(min=0)) + self._longest
            index_RL[:, length - most :] = node_RN.where(beyond_RN >= 0, index_RL[:, length - most :])
        return self._tokens_BX[rows_R1, index_RL].masked_fill(order_RL < 0, NO_TOKEN)

    def _of(self, rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the paths to places, (R, N), and their depths, (R,)."""
        rows = rows if len(self._paths) > 1 else np.zeros_like(rows)
        return self._paths[rows, columns], self._depths[rows, columns]


@functools.lru_cache(maxsize=256)
def table(parents: tuple[int, ...]) -> np.ndarray:
    """Return the nodes on the path to the row's last token and to each of N nodes, then -1, (N + 1, N)."""
    found = np.full((len(parents) + 1, len(parents)), -1)
    for node, path in enumerate(paths(parents)):
        found[node, : len(path)] = path
    return found
