from __future__ import annotations

import attrs
import pytest
import torch
from specframe_testing import harness, zoo
from specframe_testing.conformance import AlignmentSuite

from specframe.contracts.drafts import Block
from specframe.contracts.round import Batch
from specframe.forward.recorded_chains import Still


@pytest.mark.wide(but=["test_rows_stop_at_every_place[3]", "test_equals_reference[slab-continuous]"])
class TestRagged(AlignmentSuite):
    """Slot = position."""

    def make(self) -> str:
        return "ragged"


@pytest.mark.wide(but=["test_equals_reference[pool-fixed]"])
class TestEqspec(AlignmentSuite):
    """Realigned after every round."""

    def make(self) -> str:
        return "eqspec"


@pytest.mark.wide(but=["test_equals_reference[dynamic-fixed]"])
class TestExspec(AlignmentSuite):
    """Realigned when it has to be."""

    def make(self) -> str:
        return "exspec"


@pytest.mark.wide(but=["test_equals_reference[paged-fixed]", "test_prompts_read_in_chunks[dynamic-fixed]"])
class TestRollback(AlignmentSuite):
    """Cut to the batch's minimum."""

    def make(self) -> str:
        return "rollback"


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestMasking(AlignmentSuite):
    """Masked, as published."""

    def make(self) -> str:
        return "masking"


@pytest.mark.wide(but=["test_equals_reference[dynamic-same-length,window=4]"])
class TestMaskingMended(AlignmentSuite):
    """Masked, with positions that count content."""

    def make(self) -> str:
        return "masking,positions=content"


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestPadding(AlignmentSuite):
    """Padded without end, as published."""

    def make(self) -> str:
        return "padding"


@pytest.mark.wide(but=["test_equals_reference[dynamic-continuous]"])
class TestPaddingMended(AlignmentSuite):
    """Padded without end, with all fixes."""

    def make(self) -> str:
        return "padding,mask=content,positions=content,bonus=target"


@pytest.mark.wide
@pytest.mark.parametrize("rows", [1, 3])
def test_places_of_even_rows(rows: int) -> None:
    """Rows of one length have the places that they have where the host does not know that they are even."""
    layout = harness.open_run(zoo.build("qwen3"), rows, 40).target.layout
    pool = harness.open_pool(harness.requests(harness.random_prompts([6] * rows, 97), 9), rows=rows)
    batch = pool.batch(pool.admit(rows))
    still = Still(**{field.name: getattr(batch, field.name) for field in attrs.fields(Batch)})
    for start, width in ((-1, 1), (-2, 2), (-6, 6), (-1, 5), (0, 3)):
        block = Block(torch.zeros(rows, width, dtype=torch.long), start)
        found, wanted = layout.place(batch, block), layout.place(still, block)
        assert found.even
        assert not wanted.even
        for name in ("positions_BT", "slots_BT", "order_BT", "key_order_BS", "used_B"):
            assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    padded = layout.place(batch, Block(torch.zeros(rows, 8, dtype=torch.long), -8))
    assert not padded.even
    assert (padded.slots_BT[:, :2] == padded.slots_BT.max()).all()
