"""Rows and who sits in them, held against a model of it made of a dictionary."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from specframe.contracts.requests import Request
from specframe.contracts.round import Sequence, State
from specframe.devices.kinds import on_device
from specframe.row_map import Moves, RowMap

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
        assert not first or batch[0].state is State.READING
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
            state = choose.choice([State.READING, State.DECODING])
            for sequence in batch:
                sequence.state = state
            model.arrange(model.row_map.order(batch) if choose.random() < 0.5 else batch)
            live = [sequence for sequence in live if sequence in model.data]


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(10))
def test_order_moves_nobody_who_need_not(seed):
    """In the order that moves the fewest rows, everyone who sits in one of the first rows stays there."""
    choose, row_map, everyone = random.Random(seed), RowMap(ROWS), sequences(ROWS)
    row_map.arrange(list(everyone))
    batch = choose.sample(everyone, 4)
    ordered = row_map.order(batch)
    assert set(ordered) == set(batch)
    for row, sequence in enumerate(everyone[:4]):
        if sequence in batch:
            assert ordered[row] is sequence


@pytest.mark.wide
def test_same_batch_again_moves_nothing():
    """A batch that has its rows already takes no moves, and a copy of it takes none either."""
    row_map, batch = RowMap(3), sequences(3)
    assert row_map.arrange(batch) == Moves([], [], [0, 1, 2])
    assert row_map.arrange(batch) == Moves()
    assert row_map.arrange(list(batch)) == Moves()


@pytest.mark.wide
def test_who_reads_on_stays_where_it_is():
    """Between two pieces of its prompt the others decode in the first rows; going back and forth moves nobody."""
    row_map, (first, second, third, newcomer) = RowMap(3, anywhere=True), sequences(4)
    row_map.arrange([first, second, third])
    first.finish("eos")
    newcomer.state = State.READING
    row_map.arrange([newcomer])
    assert row_map.arrange(row_map.order([second, third])).destinations == [0, 2]
    assert row_map.arrange([newcomer]) == Moves()
    assert row_map.first == 2
    assert row_map.arrange(row_map.order([second, third])) == Moves()


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
