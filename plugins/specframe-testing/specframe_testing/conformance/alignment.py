"""Alignments: tokens keep their places and positions, whatever is rejected, moved or gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from specframe.model.attention import choice
from specframe.plugins.compose import able
from specframe.plugins.registry import registry
from specframe_testing import fakes, harness, standard
from specframe_testing.conformance.decoding_suite import DecodingSuite, fake_pair, real_pair, usual_requests
from specframe_testing.conformance.stops import StopSuite

BY_ROW = {0: 3, 1: 0, 2: 2, 3: 1, 4: 3}
"""How many tokens of a tree's path are right, by request."""


class AlignmentSuite(DecodingSuite, StopSuite):
    """Tests of an alignment, on every installed KV backend that can carry it and under each standard scheduler."""

    role = "alignment"

    @property
    def lossless(self) -> bool:
        """Whether the alignment is declared lossless."""
        return "lossless" in self.object().offers

    def surroundings(self) -> Sequence[dict[str, Any]]:
        """Return the KV backend it asks for with each scheduler, and the others that fit with the one it asks for."""
        alignment = self.object()
        if "lossless" not in alignment.offers:
            return [{}]
        others = [kv for kv in able(registry(), "KV backend", alignment.needs) if kv != alignment.kv]
        own = [{"kv": alignment.kv, "schedule": schedule} for schedule in standard.SCHEDULERS]
        return own + [{"kv": kv, "schedule": alignment.scheduler} for kv in others]

    def test_asks_for_what_is_there(self) -> None:
        """The scheduler and the KV backend it asks for are installed, and the backend can carry it."""
        alignment = self.object()
        assert alignment.kv in able(registry(), "KV backend", alignment.needs)
        assert alignment.scheduler in registry().names("scheduler")

    @pytest.mark.parametrize("architecture", ["mistral", "gemma3", "opt"])
    def test_windows_and_learned_positions(self, architecture: str, surroundings: dict[str, Any]) -> None:
        """Sliding windows, mixed layers and learned positions see what they see in the reference."""
        target, draft = real_pair(architecture)
        self.verify(self.pipeline(target, draft, **surroundings), usual_requests(target, new=6))

    def test_draft_model_is_fed_few_tokens(self, surroundings: dict[str, Any]) -> None:
        """After the prompt the draft model is fed at most K + 1 tokens per row and round, however rows are moved."""
        target, draft = fake_pair()
        feeds = harness.Feeds()
        self.verify(self.pipeline(target, draft, observers=[feeds], **surroundings), usual_requests(target))
        assert any(round.draft for round in feeds.decoding)
        for round in feeds.decoding:
            drafted = round.report.draft.depth
            assert sum(tokens for _, tokens in round.draft) <= (drafted + 1 if drafted else 0)
            assert {rows for rows, _ in round.draft + round.target} == {round.rows}

    def test_full_acceptance(self, surroundings: dict[str, Any]) -> None:
        """Rounds of right drafts yield K + 1 tokens for every row."""
        self.require_lossless()
        target, _ = fake_pair()
        asked = usual_requests(target, new=11, stop=False)
        drafter = fakes.always_right(harness.truth(target, asked))
        results = self.verify(self.pipeline(target, drafter, **surroundings), asked)
        assert {result.metrics.num_spec_steps for result in results} == {2}

    def test_a_second_model_on_the_same_cache(self, surroundings: dict[str, Any]) -> None:
        """What a drafter feeds into the target's cache and has forgotten leaves no trace: the target's own drafts are accepted."""
        if "share" not in self.object().offers:
            pytest.skip("the alignment does not share caches")
        target, _ = fake_pair()
        asked = usual_requests(target, new=11, stop=False)
        results = self.verify(self.pipeline(target, fakes.Sharing(), **surroundings), asked)
        assert {result.metrics.num_spec_steps for result in results} == {2}

    def test_prompts_read_in_chunks(self, surroundings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        """Prompts read in several passes, with rows that have begun and others in one batch, are cached alike."""
        monkeypatch.setattr(choice, "PREFILL_TOKENS", 8)
        target, draft = fake_pair()
        self.verify(self.pipeline(target, draft, **surroundings), usual_requests(target))

    def tree_drafter(self, target: Any, asked: Any, right: fakes.Right) -> Any:
        """Return a drafter of trees; skip a test of them where the alignment places chains."""
        if "tree" not in self.object().offers:
            pytest.skip("the alignment places chains")
        return fakes.ScriptedTree(harness.truth(target, asked), right)

    def test_trees(self, surroundings: dict[str, Any]) -> None:
        """Nodes see their own path, and an accepted path is moved whole, in ragged batches and on every KV backend."""
        target, _ = fake_pair()
        asked = usual_requests(target)
        drafter = self.tree_drafter(target, asked, BY_ROW)
        self.verify(self.pipeline(target, drafter, draft_length=3, **surroundings), asked)

    @pytest.mark.parametrize("right", [None, 0], ids=["all", "none"])
    def test_trees_that_stand_or_fall(self, right: fakes.Right) -> None:
        """Trees whose longest path is right in every row, and trees without a right node, keep all invariants."""
        target, _ = fake_pair()
        asked = usual_requests(target)
        drafter = self.tree_drafter(target, asked, right)
        self.verify(self.pipeline(target, drafter, draft_length=3, check=True), asked)

    @pytest.mark.parametrize("architecture", ["gemma3", "gpt2"])
    def test_trees_of_real_models(self, architecture: str) -> None:
        """Windows and learned positions depend on a node's depth, not on its slot."""
        target, _ = real_pair(architecture)
        asked = usual_requests(target, new=6)
        drafter = self.tree_drafter(target, asked, BY_ROW)
        self.verify(self.pipeline(target, drafter, draft_length=3), asked)

    def test_no_slot_is_written_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Padding before a row's first token has a slot of its own in every forward; so do the invariants hold in all others."""
        self.require_lossless()
        monkeypatch.setattr(choice, "PREFILL_TOKENS", 8)
        target, draft = fake_pair()
        self.verify(self.pipeline(target, draft, check=True), usual_requests(target))

    def test_longest_row_leaves(self) -> None:
        """When the longest row has ended, the rows aligned to it decode on correctly."""
        target, draft = fake_pair()
        prompts = harness.random_prompts([30, 3, 1, 25, 2], 61, seed=6)
        asked = harness.requests(prompts, [2, 16, 12, 3, 9])
        self.verify(self.pipeline(target, draft), asked)
