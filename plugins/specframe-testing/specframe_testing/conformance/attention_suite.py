"""Attention backends: what they give is what mask tensors give, from every view they read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch

from specframe.contracts.attention import AttentionFacts
from specframe.contracts.cache import ChunkWindow, DenseView, KVShape, KVView, Placement, Window
from specframe.contracts.drafts import Block
from specframe.model.attention.choice import kinds_of_windows
from specframe.model.attention.interface import attend, in_pages
from specframe.model.attention.masks import masks
from specframe_testing import harness, zoo
from specframe_testing.conformance.role_suite import Suite, pytest_generate_surroundings

HEADS, KEY_HEADS, SIZE, SLOTS, PAGE = 6, 3, 8, 40, 16
USED = (5, 29, 33, 2)
"""Tokens of each row, those fed included."""


class AttentionBackendSuite(Suite):
    """Tests of an attention backend, and decoding with it; ``companions`` names the KV backend where it reads pages alone."""

    role = "attention backend"
    architectures: ClassVar[Sequence[str]] = ("llama", "mistral", "gemma3", "gpt2")

    pytest_generate_tests = staticmethod(pytest_generate_surroundings)

    @property
    def facts(self) -> AttentionFacts:
        """A model that these tests could be from."""
        shapes = (KVShape(KEY_HEADS, SIZE, SIZE, torch.float32),)
        return AttentionFacts(harness.device(), torch.float32, HEADS, shapes, (None, 4))

    def suited(self) -> Any:
        """Return the backend; skip the test where it does not suit a model on a CPU."""
        backend = self.object()
        if not backend.suits(self.facts):
            pytest.skip("this attention backend does not suit a model in float32 here")
        return backend

    def test_reads_a_view(self) -> None:
        """It reads plain tensors or pages, or both."""
        assert {"dense", "paged"} & self.object().offers

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("fed", [1, 4])
    @pytest.mark.parametrize("window", [None, 4, ChunkWindow(4)], ids=str)
    @pytest.mark.parametrize("kind", ["dense", "paged"])
    def test_equals_masks(self, seed: int, fed: int, window: Window, kind: str) -> None:
        """Rows of unequal length, one with fewer tokens than are fed, see what their masks show."""
        backend = self.suited()
        if kind not in backend.offers or not kinds_of_windows([window]) <= backend.offers:
            pytest.skip(f"this attention backend does not offer {kind} views with such windows")
        on = harness.device()
        used_B = torch.tensor(USED, device=on)
        index_BT = used_B[:, None] - fed + torch.arange(fed, device=on)
        placement = Placement(index_BT, index_BT, index_BT, torch.arange(SLOTS, device=on)[None], in_order=True)
        self.compare(backend, placement, kind, window, seed)

    @pytest.mark.parametrize("seed", range(4))
    def test_trees(self, seed: int) -> None:
        """Nodes of a tree see their ancestors and no sibling."""
        backend = self.suited()
        if "tree" not in backend.offers:
            pytest.skip("this attention backend offers no trees")
        on = harness.device()
        parents_1T = torch.tensor([[-1, 0, 0, 1, 2]], device=on)
        block = Block(torch.zeros(len(USED), 5, dtype=torch.long, device=on), 0, parents_1T)
        lengths_B1 = torch.tensor(USED, device=on)[:, None]
        index_BT, slots_BT = lengths_B1 + block.depth_BT(), lengths_B1 + torch.arange(5, device=on)
        key_index_BS = torch.arange(SLOTS, device=on).repeat(len(USED), 1).scatter(1, slots_BT, index_BT)
        placement = Placement(index_BT, slots_BT, index_BT, key_index_BS, sees_BTT=block.sees_BTT)
        self.compare(backend, placement, "dense" if "dense" in backend.offers else "paged", None, seed)

    def compare(self, backend: Any, placement: Placement, kind: str, window: Window, seed: int) -> None:
        """Assert that a plan gives what masks give, for all tokens that are no padding."""
        generator = torch.Generator().manual_seed(seed)
        shape = len(USED), placement.index_BT.shape[1], SLOTS
        query = torch.randn(shape[0], HEADS, shape[1], SIZE, generator=generator).to(harness.device())
        dense = DenseView(*torch.randn(2, shape[0], KEY_HEADS, SLOTS, SIZE, generator=generator).to(harness.device()))
        mask = masks(placement, [window], query.dtype)[window]
        expected, _ = attend(torch.nn.Module(), query, dense.keys, dense.values, mask)
        plan, view = backend.plan(placement), self.view(dense, kind)
        if plan is None:
            return
        found = plan.attend(query, view, None, window)
        assert found.isfinite().all()
        real_BT = placement.index_BT >= 0
        torch.testing.assert_close(found[real_BT], expected[real_BT], atol=1e-5, rtol=1e-5)

    @staticmethod
    def view(dense: DenseView, kind: str) -> KVView:
        """Return keys and values as a store of a kind hands them out."""
        return dense if kind == "dense" else in_pages(dense, PAGE)

    def test_equals_reference(self, surroundings: dict[str, Any]) -> None:
        """Ragged batches of real architectures decode to the reference decoder's tokens."""
        for name in self.architectures:
            target = zoo.build(name)
            windows = getattr(target.config, "sliding_window", None)
            if windows and "window" not in self.object().offers:
                continue
            asked = harness.requests(harness.random_prompts([5, 1, 14, 9], zoo.VOCABULARY), [6, 9, 3, 5], {zoo.EOS})
            self.verify(self.pipeline(target, zoo.good_draft(target), **surroundings), asked)
