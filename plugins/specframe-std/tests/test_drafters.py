from __future__ import annotations

import pytest

from specframe.testing import fakes, harness
from specframe.testing.conformance import DrafterSuite

TARGET = fakes.fake_target()
PROMPTS = harness.random_prompts((6, 1, 9, 1, 13, 2, 7), 61, seed=5)


class TestModel(DrafterSuite):
    """The draft language model with its persistent cache."""

    def make(self) -> str:
        return "model"

    @pytest.mark.parametrize("schedule", ["fixed", "continuous", "same-length,window=5"])
    @pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec", "rollback"])
    def test_a_copy_of_the_target_is_always_right(self, align: str, schedule: str) -> None:
        """Drafts of the target itself all stand, however rows are moved and left out: the cache is never wrong."""
        asked = harness.requests(PROMPTS, [3, 17, 9, 12, 1, 6, 17])
        pipe = self.pipeline(TARGET, fakes.fake_draft(TARGET, slip_every=0), align=align, schedule=schedule)
        self.verify(pipe, asked)
        assert pipe.report.num_draft_tokens == pipe.report.num_accepted_draft_tokens > 0

    @pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec"])
    def test_its_tokens_are_the_draft_models_own(self, align: str) -> None:
        """What is proposed is what the draft model generates by itself from the same tokens, after any rejection."""
        draft = fakes.fake_draft(TARGET, slip_every=2)
        feeds = harness.Feeds()
        asked = harness.requests(PROMPTS, 12)
        results = self.verify(self.pipeline(TARGET, draft, align=align, observers=[feeds]), asked)
        for round in feeds.decoding:
            for row, sequence in enumerate(round.report.sequences):
                index = sequence.request.index
                tokens = [*PROMPTS[index], *results[index].token_ids][: round.report.lengths[row]]
                own = harness.continuation(draft, tokens, self.draft_length)
                proposed = round.report.draft.tokens_BN[row].tolist()
                assert proposed == own[: len(proposed)]


class TestNone(DrafterSuite):
    """Plain decoding."""

    def make(self) -> str:
        return "none"
