"""Drafters: right or wrong, they never change the output or its distribution, and they never read a prefix twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from transformers import PreTrainedModel

from specframe.contracts.drafts import Budget
from specframe.contracts.requests import Request
from specframe.text.sampling import Sampling
from specframe_testing import distribution, fakes, harness, standard, zoo
from specframe_testing.conformance.decoding_suite import DecodingSuite, fake_pair, usual_requests

LEAST = 1e-5
"""The p-value below which samples are not the target's own. By Bonferroni a hundred suites fail by chance once in a thousand times,
and with the fixed seed each either does or does not."""


class DrafterSuite(DecodingSuite):
    """Tests of a drafter. Where it needs a draft language model it finds one in ``run.draft_model``."""

    role = "drafter"
    architectures: ClassVar[tuple[str, ...]] = ("qwen3", "gpt2", "gemma3")

    def scripted(self, target: PreTrainedModel, asked: Sequence[Request], right: fakes.Right = None) -> Any:
        """Return a draft model about as good as the script asks for: the drafter under test writes its own."""
        slips = {None: 0, 0: 1}.get(right, 3) if right is None or isinstance(right, int) else 2
        return fakes.fake_draft(target, slips) if isinstance(target, fakes.FakeModel) else None

    def watch(self, **options: Any) -> list[harness.HarnessRound]:
        """Decode the standard requests and return the forward passes of the decoding rounds.

        A round that is launched ahead would have its forwards counted to the one before it: rounds are synchronous.
        """
        target, draft = fake_pair()
        feeds = harness.Feeds()
        options = {"rounds": "synchronous", **options}
        self.verify(self.pipeline(target, draft, observers=[feeds], **options), usual_requests(target))
        return feeds.decoding

    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    def test_every_alignment(self, align: str) -> None:
        """The drafter works under every alignment, and so on caches that move."""
        target, draft = fake_pair()
        self.verify(self.pipeline(target, draft, align=align), usual_requests(target))

    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    def test_draft_model_is_fed_few_tokens(self, align: str) -> None:
        """After the prompt the draft model is fed at most K + 1 tokens per row and round."""
        for round in self.watch(align=align):
            assert sum(tokens for _, tokens in round.draft) <= self.draft_length + 1

    def test_finished_rows_are_not_run(self) -> None:
        """The draft model runs the rows of the batch and no others."""
        for round in self.watch():
            assert all(rows == round.rows for rows, _ in round.draft)

    def test_draft_is_no_longer_than_asked(self) -> None:
        """A draft has at most the tokens asked for, and none in rounds that read prompts."""
        target, draft = fake_pair()
        feeds = harness.Feeds()
        harness.decode(self.pipeline(target, draft, observers=[feeds]), usual_requests(target))
        for round in [*feeds.reading, *feeds.decoding]:
            assert round.report.draft.depth <= (0 if round.report.prefill else self.draft_length)
            assert round.report.draft.tokens_BN.shape[0] == round.rows

    @pytest.mark.parametrize("align", standard.ALIGNMENTS[:2])
    def test_rows_have_budgets_of_their_own(self, align: str) -> None:
        """What some rows, one row or all rows are not to draft is not counted and changes no token."""
        target, draft = fake_pair()
        drafter = self.pipeline(target, draft, align=align).composition.drafter
        sized = getattr(drafter, "budget", None)
        policy = fakes.Uneven((sized and sized(self.draft_length)) or Budget(self.draft_length))
        feeds, asked = harness.Feeds(), usual_requests(target, new=20, stop=False)
        self.verify(self.pipeline(target, draft, align=align, draft_length=policy, observers=[feeds]), asked)
        budgets = [Budget(0)] * len(feeds.decoding) if "plain" in drafter.offers else policy.said
        for said, round in zip(budgets, feeds.decoding, strict=True):
            depths_B = np.full(round.rows, said.depth) if said.depths_B is None else said.depths_B
            nodes_B = said.nodes_B if said.nodes_B is not None else depths_B if said.nodes == said.depth else said.nodes
            assert (round.report.drafted <= nodes_B).all()
            assert (round.report.accepted <= depths_B).all()
            assert round.report.draft.depth <= depths_B.max()

    def test_drafts_hold_token_ids(self) -> None:
        """Every token proposed is an id of the target's vocabulary, with as many rows of logits where there are any."""
        target, _ = fake_pair()
        for round in self.watch():
            draft = round.report.draft
            assert bool(((draft.tokens_BN >= 0) & (draft.tokens_BN < target.config.vocab_size)).all())
            if draft.logits_BNV is not None:
                assert draft.logits_BNV.shape[:2] == draft.tokens_BN.shape

    def test_samples_are_the_targets(self) -> None:
        """With a temperature three tokens have the target's joint probabilities: a draft's logits are those it was drawn by."""
        self.require_lossless()
        target, sampling = distribution.small(1), Sampling(temperature=0.7, top_p=0.9)
        pipe = self.pipeline(target, zoo.good_draft(target, noise=0.05), batch_size=450)
        chance = distribution.p_value(distribution.drawn(pipe, sampling, 300), sampling)
        assert chance > LEAST, (
            f"a lossless rule gave tokens of another distribution than the target's (p = {chance:.1g}): expected tokens chosen by "
            "rule.choose of the logits in logits_BNV, and none left out because of what was drawn"
        )
