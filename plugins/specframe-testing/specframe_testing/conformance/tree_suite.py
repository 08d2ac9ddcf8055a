"""Drafters of trees: every node has a parent, and accepted tokens stay in the drafter's own cache."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from specframe.contracts.drafts import Draft
from specframe.text.sampling import Sampling
from specframe_testing import harness, standard
from specframe_testing.conformance.decoding_suite import fake_pair, real_pair, usual_requests
from specframe_testing.conformance.drafter_suite import DrafterSuite


class TreeDrafterSuite(DrafterSuite):
    """Tests of a drafter that proposes trees; its number of nodes is what it asks for by ``budget``, or the draft length's."""

    sampling_rule: ClassVar[str] = standard.ALWAYS_THE_SAME
    """A rule under which tokens are sampled, and the same whatever was drafted."""

    def perfect(self, target: Any) -> Any:
        """Return a draft model that gives the drafter the target's own tokens, or None if there is none for this drafter."""
        return target

    def drafts(self, **options: Any) -> list[Draft]:
        """Return the drafts of the rounds that decode the usual requests."""
        return [round.report.draft for round in self.watch(**options) if round.report.draft.nodes]

    def test_parents_come_first(self) -> None:
        """A node's parent is the row's last token or an earlier node, and no path is longer than the draft says."""
        drafts = self.drafts()
        assert drafts, "nothing was drafted"
        for draft in drafts:
            assert draft.parents_BN is not None, "the draft is a chain"
            for parents in draft.parents_BN.tolist():
                depth = list[int]()
                for node, parent in enumerate(parents):
                    assert -1 <= parent < node
                    depth.append(1 if parent < 0 else depth[parent] + 1)
                assert max(depth) <= draft.depth

    def test_siblings_differ(self) -> None:
        """Under a rule that is sure of its tokens no two children of a node are the same token; padding is no child."""
        for draft in self.drafts(accept="greedy"):
            assert draft.parents_BN is not None
            real = [draft.nodes] * len(draft.tokens_BN) if draft.counts_B is None else draft.counts_B.tolist()
            for row, parents in enumerate(draft.above_BN.tolist()):
                pairs = list(zip(parents, draft.tokens_BN[row].tolist(), strict=True))[: real[row]]
                assert len(set(pairs)) == len(pairs)

    def test_one_shape_in_every_round(self) -> None:
        """Rounds of one depth have one number of nodes: shapes do not follow what was found."""
        shapes = {(draft.depth, draft.nodes) for draft in self.drafts()}
        assert len({depth for depth, _ in shapes}) == len(shapes)

    @pytest.mark.parametrize("align", standard.FOR_TREES)
    def test_every_alignment(self, align: str) -> None:
        """The drafter works under every alignment that places trees, on caches that move too, and all invariants hold."""
        target, draft = fake_pair()
        self.verify(self.pipeline(target, draft, align=align, check=True), usual_requests(target))

    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    def test_draft_model_is_fed_few_tokens(self, align: str) -> None:
        """A round feeds the draft model once per depth at most, and never a prefix: two tokens, or nodes of the tree."""
        for round in self.watch(align=align):
            draft = round.report.draft
            assert len(round.draft) <= draft.depth
            assert all(tokens <= max(2, draft.nodes) for _, tokens in round.draft)

    @pytest.mark.parametrize("align", standard.FOR_TREES[:3])
    def test_what_stood_stays(self, align: str) -> None:
        """With the target as draft model every round gives K + 1 tokens: accepted ones are in its cache, in their places."""
        target, _ = fake_pair()
        if (draft := self.perfect(target)) is None:
            pytest.skip("no draft model makes this drafter perfect")
        asked = usual_requests(target, new=13, stop=False)
        results = self.verify(self.pipeline(target, draft, align=align, draft_length=3), asked)
        assert {result.metrics.num_spec_steps for result in results} == {3}

    def test_sampling_does_not_depend_on_the_tree(self) -> None:
        """Under a rule whose output does not depend on the draft, sampled tokens are those of plain sampling."""
        target, draft = real_pair("qwen3")
        prompts = harness.random_prompts([5, 1, 9], target.config.vocab_size)
        plain, drafted = (
            [one.token_ids for one in pipe.generate(prompts, 10, sampling=Sampling(temperature=0.8))]
            for pipe in (
                harness.pipeline(target, None, accept=self.sampling_rule, batch_size=3),
                self.pipeline(target, draft, accept=self.sampling_rule),
            )
        )
        assert drafted == plain

    def test_recorded_forwards(self) -> None:
        """Forwards that are recorded, with buffers for parents and visibility, give the same tokens."""
        target, draft = real_pair("qwen3")
        self.verify(self.pipeline(target, draft, graphs="on"), usual_requests(target))
