"""Which steps of chains are captured, and the inputs that they are replayed with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from test_settle import batch_of

from specframe.contracts.drafts import Scores
from specframe.model.captured_graphs import CapturedChain, StepBuffers


def test_rows_that_a_later_batch_does_not_have_are_padding() -> None:
    """Buffers for four rows, filled with three and then with one, have one row that is live."""
    buffers = StepBuffers.of(batch_of(5, 3, 4), 1, 4, 8)
    live = []
    for batch in (batch_of(5, 3, 4), batch_of(6)):
        buffers.fill(batch, torch.ones(len(batch), 1, dtype=torch.long), 0)
        live.append(buffers.live_R1[:, 0].tolist())  # type: ignore[index]
    assert live == [[True] * 3 + [False], [True] + [False] * 3]


def test_a_step_is_recorded_where_each_row_has_its_tokens() -> None:
    """A step that feeds two tokens of each row is run as it is while a row has one, whatever the others have."""
    layout: Any = SimpleNamespace(place=lambda batch, block: None)
    taken = []
    for lengths in ((5, 1), (5, 2)):
        chain = CapturedChain(
            lambda block, *_: Scores(torch.zeros(len(block.ids_BT), 1, 7)), layout, 4, 16, lambda *given: None
        )
        chain.graphs = SimpleNamespace(take=lambda key, prepare: taken.append(key))  # type: ignore[assignment]
        batch = batch_of(*lengths)
        chain(batch, torch.ones(2, 2, dtype=torch.long), 1, lambda batch, offset, logits: logits.argmax(-1))
    assert [key[:2] for key in taken] == [(2, 2)]
