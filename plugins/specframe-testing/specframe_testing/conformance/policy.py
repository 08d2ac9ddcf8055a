"""Draft-length policies: a number in range, and no other token."""

from __future__ import annotations

from typing import Any

from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.round import Batch
from specframe.pipeline import Pipeline
from specframe.text.sampling import Sampling
from specframe_testing import fakes, harness
from specframe_testing.conformance.decoding_suite import RIGHT, DecodingSuite, fake_pair, usual_requests


class Recorder:
    """Wrapper that records the draft lengths of a policy."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.said: list[Budget] = []
        self.rows: list[int] = []
        """The rows of each round."""
        self.observed: list[RoundReport] = []

    def __getattr__(self, name: str) -> Any:
        """Return the other policy's member."""
        return getattr(self._policy, name)

    def budget(self, batch: Batch) -> Budget:
        """Return and note the other policy's budget."""
        self.said.append(self._policy.budget(batch))
        self.rows.append(len(batch))
        return self.said[-1]

    def observe(self, report: RoundReport) -> None:
        """Note the round and let the other policy learn."""
        self.observed.append(report)
        self._policy.observe(report)


class DraftLengthPolicySuite(DecodingSuite):
    """Tests of a draft-length policy."""

    role = "draft-length policy"

    def recorded(self, right: fakes.Right) -> tuple[Recorder, harness.Feeds]:
        """Decode with drafts of a given quality; return the policy's draft lengths and the fed tokens."""
        target, _ = fake_pair()
        asked = usual_requests(target, new=24, stop=False)
        recorder, feeds = Recorder(self.object()), harness.Feeds()
        drafter = fakes.ScriptedDrafter(harness.truth(target, asked), right)
        pipe: Pipeline = harness.pipeline(target, drafter, batch_size=3, draft_length=recorder, observers=[feeds])
        self.verify(pipe, asked)
        return recorder, feeds

    def test_draft_lengths_are_in_range(self) -> None:
        """Every round's budget, and each row's, is of whole numbers from 0 to the policy's maximum, whatever the acceptance."""
        for right in RIGHT.values():
            recorder, _ = self.recorded(right)
            assert recorder.said
            for said, rows in zip(recorder.said, recorder.rows, strict=True):
                assert (type(said.depth), type(said.nodes)) == (int, int)
                assert 0 <= said.depth <= recorder.maximum.depth
                assert said.depth <= said.nodes <= recorder.maximum.nodes
                for own_B, most in ((said.depths_B, said.depth), (said.nodes_B, said.nodes)):
                    assert own_B is None or (own_B.shape == (rows,) and 0 <= own_B.min() <= own_B.max() <= most)

    def test_asked_once_per_round(self) -> None:
        """The policy is asked once in each round that decodes, and drafts are no longer than it said, those of each row too."""
        recorder, feeds = self.recorded(None)
        assert len(recorder.said) == len(feeds.decoding)
        lengths = [round.report.draft.depth for round in feeds.decoding]
        assert all(length <= said.depth for length, said in zip(lengths, recorder.said, strict=True))
        for said, round in zip(recorder.said, feeds.decoding, strict=True):
            for own_B in (said.depths_B, said.nodes_B):
                assert own_B is None or (round.report.drafted <= own_B).all()

    def test_observes_the_rounds_it_was_asked_about(self) -> None:
        """The policy observes each round whose draft length it gave, and no other, such as that in which samples start."""
        target, draft = fake_pair()
        recorder = Recorder(self.object())
        pipe = harness.pipeline(target, draft, batch_size=4, draft_length=recorder)
        prompts = harness.random_prompts((3, 7), target.config.vocab_size)
        results = list(pipe.generate(prompts, 12, sampling=Sampling(samples=3)))
        first, last = results[:3], results[3:]
        assert all(one.token_ids == same[0].token_ids for same in (first, last) for one in same)
        assert len(recorder.observed) == len(recorder.said)
        assert not any(report.prefill for report in recorder.observed)
        if "calibration" in recorder.offers:
            predicted, stood, tested = recorder.calibrated().T
            assert ((stood >= 0) & (stood <= tested)).all()
            assert ((predicted >= 0) & (predicted <= tested)).all(), "sums of probabilities"

    def test_maximum_is_a_whole_number(self) -> None:
        """The maximum is known before the run: caches are made for it."""
        maximum = self.object().maximum.nodes
        assert type(maximum) is int
        assert maximum >= 0
