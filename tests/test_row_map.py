"""Rows and who sits in them, held against a model of it made of a dictionary."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from specframe.contracts.requests import Request
from specframe.contracts.round import Sequence, SequenceState
from specframe.devices.kinds import on_device
from specframe.row_map import RowMap

ROWS = 6


def sequences(count):
    """Return live sequences."""
    return [Sequence(Request(index, [1], 1), 2) for index in range(count)]


class Model:
    """Data of each sequence, kept in rows by a row_map's moves and in a dictionary by identity."""

    def __init__(self, anywhere=False):
        self.row_map = RowMap(ROWS, anywhere)
        self.device, self.layered = torch.zeros(ROWS, 2), torch.zeros(3, ROWS)
        self.host = np.zeros(ROWS, dtype=np.int64)
        self.data = {}

    def arrange(self, batch):
        """Follow a batch, write something new to its rows, and check everyone's data."""
        moves = self.row_map.arrange(batch)
        moves.apply(self.device)
        moves.apply(self.layered, axis=1)
        moves.apply_host(self.host)
        live = {sequence for sequence in self.data if not sequence.finished}
        assert {self.row_map.row(s) for s in batch if s not in self.data} == set(moves.fresh)
        first = self.row_map.first
        assert [self.row_map.row(s) for s in batch] == list(range(first, first + len(batch)))
        assert not first or batch[0].state is SequenceState.READING
        for sequence in live:
            self.check(sequence)
        for row, sequence in enumerate(batch, first):
            value = self.data[sequence] = 1 + max(self.data.values(), default=0)
            self.device[row], self.layered[:, row], self.host[row] = value, value, value

    def check(self, sequence):
        """Assert that a sequence's row holds its data, in every copy."""
        row, value = self.row_map.row(sequence), self.data[sequence]
        assert self.device[row].tolist() == [value] * 2
        assert self.layered[:, row].tolist() == [value] * 3
        assert self.host[row] == value


@pytest.mark.wide
@pytest.mark.parametrize("anywhere", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_moves_keep_everyones_data(seed, anywhere):
    """Whatever batches follow each other, whoever ends and whoever comes, a sequence finds its data in its row."""
    choose, model = random.Random(seed), Model(anywhere)
    live, newcomers = [], iter(sequences(200))
    for _ in range(40):
        for sequence in live:
            if choose.random() < 0.15:
                sequence.finish("eos")
        live = [sequence for sequence in live if not sequence.finished]
        live += [next(newcomers) for _ in range(choose.randint(0, ROWS - len(live)))]
        if live:
            batch = choose.sample(live, choose.randint(1, len(live)))
            state = choose.choice([SequenceState.READING, SequenceState.DECODING])
            for sequence in batch:
                sequence.state = state
            model.arrange(model.row_map.order(batch) if choose.random() < 0.5 else batch)
            live = [sequence for sequence in live if sequence in model.data]


@pytest.mark.wide
def test_too_few_rows_are_an_error():
    """When nobody has finished and there is no row left, that is said with numbers."""
    row_map, (first, second, third) = RowMap(2), sequences(3)
    row_map.arrange([first, second])
    with pytest.raises(ValueError, match="2 rows cannot hold a batch of 1 and 2 other sequences"):
        row_map.arrange([third])
    with pytest.raises(ValueError, match=r"2 rows cannot hold a batch of 3$"):
        RowMap(2).arrange([first, second, third])


def test_numbers_sent_to_a_device_are_a_copy():
    """The caller's array may change after it was sent."""
    values = np.array([3, 1])
    sent = on_device(values, torch.device("cpu"))
    values += 1
    assert sent.tolist() == [3, 1]
