from __future__ import annotations

import attrs
import pytest
from specframe_std.drafters.draft_model import IDLE, SHORT_GAP, ModelDrafter
from specframe_std.policies.fixed_length import FixedLength
from specframe_testing import fakes, harness
from specframe_testing.conformance import DrafterSuite

from specframe.contracts.drafts import Budget
from specframe.contracts.round import Batch
from specframe.model.cached import CachedModel
from specframe.text.sampling import Sampling

TARGET = fakes.fake_target()
PROMPTS = harness.random_prompts((6, 1, 9, 1, 13, 2, 7), 61, seed=5)


class Paused(FixedLength):
    """Asks for no draft in rounds of these numbers, those that read prompts not counted, over all runs."""

    offers: frozenset[str] = frozenset()

    def __init__(self, budget: Budget, *pauses: range) -> None:
        super().__init__(budget.depth, budget.nodes)
        self.pauses, self._round = pauses, 0

    def budget(self, batch: Batch) -> Budget:
        """Return the budget, or none."""
        self._round += 1
        return Budget(0) if any(self._round in one for one in self.pauses) else self.maximum


@pytest.mark.wide(but=["test_equals_reference[default]", "test_samples_are_the_targets"])
class TestModel(DrafterSuite):
    """The draft language model with its persistent cache."""

    def make(self) -> str:
        return "model"

    @pytest.mark.wide
    @pytest.mark.parametrize("schedule", ["fixed", "continuous", "same-length,window=5"])
    @pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec", "rollback"])
    def test_a_copy_of_the_target_is_always_right(self, align: str, schedule: str) -> None:
        """Drafts of the target itself are all accepted, however rows are moved and left out: the cache is never wrong."""
        asked = harness.requests(PROMPTS, [3, 17, 9, 12, 1, 6, 17])
        pipe = self.pipeline(TARGET, fakes.fake_draft(TARGET, slip_every=0), align=align, schedule=schedule)
        self.verify(pipe, asked)
        assert pipe.report.num_draft_tokens == pipe.report.num_accepted_draft_tokens > 0

    @pytest.mark.wide(but=["ragged-chain-all rows draft"])
    @pytest.mark.parametrize("speculate", [True, False], ids=["all rows draft", "some rows draft"])
    @pytest.mark.parametrize("tree", [{}, {"branch": "2/1/1"}], ids=["chain", "tree"])
    @pytest.mark.parametrize("align", ["ragged", "eqspec"])
    def test_budgets_of_rows_leave_its_cache_right(self, align: str, tree: dict[str, str], speculate: bool) -> None:
        """What a row was not to draft is drafted again as rightly as what was rejected: the target's own drafts are accepted."""
        drafter = ModelDrafter(**tree)
        policy = fakes.Uneven(drafter.budget() or Budget(3))
        asked = harness.requests(PROMPTS, [30, 14, 20, 9, 17, 12, 4])
        asked = [attrs.evolve(one, speculate=speculate or one.index % 3 > 0) for one in asked]
        options = {"align": align, "batch_size": 4, "check": True, "draft_length": policy}
        pipe = harness.pipeline(TARGET, fakes.fake_draft(TARGET, slip_every=0), drafter=drafter, **options)
        harness.check(pipe, asked)
        assert pipe.report.num_accepted_draft_tokens > 0
        if not tree:
            assert pipe.report.num_draft_tokens == pipe.report.num_accepted_draft_tokens

    @pytest.mark.wide(but=["continuous-paged,share=on-chain"])
    @pytest.mark.parametrize("tree", [{}, {"branch": "2/1/1"}], ids=["chain", "tree"])
    @pytest.mark.parametrize("kv", ["slab", "pool", "paged", "paged,share=on"])
    @pytest.mark.parametrize("schedule", ["continuous", "continuous,piece=3", "same-length,window=5"])
    def test_prompts_are_read_when_a_draft_is_asked_for(self, schedule: str, kv: str, tree: dict[str, str]) -> None:
        """While nothing is drafted no prompt is read, and afterwards the target's own drafts are accepted, complete."""
        drafter, feeds = ModelDrafter(**tree), harness.Feeds()
        policy = Paused(drafter.budget() or Budget(3), range(20), range(30, 50))
        asked = harness.requests(
            harness.random_prompts([6, 9, 4, 13, 7, 5, 11] * 2, 61), [11, 14, 12, 9, 17, 25, 10] * 2
        )
        options = {
            "schedule": schedule,
            "kv": kv,
            "batch_size": 3,
            "check": True,
            "draft_length": policy,
            "observers": [feeds],
        }
        pipe = harness.pipeline(TARGET, fakes.fake_draft(TARGET, slip_every=0), drafter=drafter, **options)
        harness.check(pipe, asked)
        assert pipe.report.num_accepted_draft_tokens > 0
        if not tree:
            assert pipe.report.num_draft_tokens == pipe.report.num_accepted_draft_tokens
        idle, fed = IDLE, dict[bool, int]()
        for round in feeds.rounds:
            if round.report.prefill:
                waits = idle >= IDLE
                fed[waits] = fed.get(waits, 0) + sum(rows * tokens for rows, tokens in round.draft)
            elif schedule.startswith("continuous"):
                idle = 0 if round.report.draft.depth else idle + 1
        if schedule.startswith("continuous"):
            assert fed.get(False)
            assert bool(fed[True]) == ("share" in kv), "what later prompts may begin with has to be read"

    @pytest.mark.wide(but=["ends-slab"])
    @pytest.mark.parametrize("kv", ["slab", "pool"])
    @pytest.mark.parametrize("pause", [range(18), range(16, 40)], ids=["ends", "begins"])
    def test_a_pause_in_the_middle_of_a_prompt(self, pause: range, kv: str) -> None:
        """Of a prompt in chunks of which some were read, and others not, nothing is taken for read: all drafts are accepted."""
        asked = harness.requests(harness.random_prompts([5, 4, 60, 70], 61), [60, 12, 20, 30])
        options = {
            "schedule": "continuous,piece=3",
            "kv": kv,
            "batch_size": 2,
            "check": True,
            "draft_length": Paused(Budget(3), pause),
        }
        pipe = harness.pipeline(TARGET, fakes.fake_draft(TARGET, slip_every=0), **options)
        harness.check(pipe, asked)
        assert pipe.report.num_draft_tokens == pipe.report.num_accepted_draft_tokens > 0

    def test_a_run_without_drafts_reads_no_prompt(self) -> None:
        """A run whose policy asks for no draft reads no prompt, not even its first ones after a run with drafts."""
        feeds, policy = harness.Feeds(), Paused(Budget(3))
        pipe = harness.pipeline(TARGET, fakes.fake_draft(TARGET), draft_length=policy, observers=[feeds], batch_size=3)
        asked = harness.requests(PROMPTS, 12)
        harness.check(pipe, asked)
        assert feeds.decoding[-1].draft
        feeds.rounds.clear()
        policy.pauses = (range(10**6),)
        harness.check(pipe, asked)
        assert not any(round.draft for round in feeds.rounds)

    @pytest.mark.wide
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
                assert proposed == own[: round.report.draft.depth]
        assert {round.report.draft.depth for round in feeds.decoding} >= {self.draft_length}

    @pytest.mark.wide(but=["ragged-chain"])
    @pytest.mark.parametrize("tree", [{}, {"branch": "2/1"}], ids=["chain", "tree"])
    @pytest.mark.parametrize("align", ["ragged", "eqspec"])
    def test_rows_without_speculation_are_not_fed(self, align: str, tree: dict[str, str]) -> None:
        """Only rows that draft take part in the draft model's forwards, and what they draft is as right as ever."""
        feeds, asked = harness.Feeds(), harness.requests(PROMPTS, [30, 14, 20, 9, 17, 12, 4])
        asked = [attrs.evolve(one, speculate=one.index % 3 > 0) for one in asked]
        options = {"align": align, "schedule": "continuous", "batch_size": 4, "check": True, "observers": [feeds]}
        how = {"drafter": ModelDrafter(**tree), "draft_length": "auto" if tree else 3}
        pipe = harness.pipeline(TARGET, fakes.fake_draft(TARGET, slip_every=0), **how, **options)
        harness.check(pipe, asked)
        for round in feeds.rounds:
            drafting = sum(sequence.request.speculate for sequence in round.report.sequences)
            assert {rows for rows, _ in round.draft} <= {drafting}
        assert any(round.draft for round in feeds.decoding)
        if not tree:
            assert pipe.report.num_draft_tokens == pipe.report.num_accepted_draft_tokens > 0

    @pytest.mark.wide(but=["ragged"])
    @pytest.mark.parametrize("align", ["ragged", "eqspec"])
    def test_a_wide_gap_is_read_in_pieces(self, align: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """What many rounds without drafts have left unread is fed as a prompt is: in chunks that fit into memory."""
        monkeypatch.setattr(CachedModel, "tokens_at_once", lambda cached, batch: 8)
        feeds, perfect, policy = harness.Feeds(), fakes.fake_draft(TARGET, slip_every=0), Paused(Budget(3), range(41))
        policy.offers = FixedLength.offers  # steady: prompts are read at once
        options = {"align": align, "batch_size": 3, "check": True, "observers": [feeds]}
        pipe = harness.pipeline(TARGET, perfect, draft_length=policy, **options)
        harness.check(pipe, harness.requests(PROMPTS[:3], [60, 50, 70]))
        assert max(width for round in feeds.decoding for _, width in round.draft) <= max(8, SHORT_GAP)
        assert pipe.report.num_draft_tokens == pipe.report.num_accepted_draft_tokens > 0


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestNone(DrafterSuite):
    """Plain decoding."""

    def make(self) -> str:
        return "none"


def test_samples_of_a_second_run_read_their_prompt_once() -> None:
    """Whoever may begin late does not where samples share a prompt, in every run of a pipeline."""
    feeds, how = harness.Feeds(), Sampling(temperature=1.0, samples=3)
    options = {"draft_length": Paused(Budget(3)), "observers": [feeds], "accept": "gumbel", "batch_size": 3}
    pipe, fed = harness.pipeline(TARGET, fakes.fake_draft(TARGET), **options), []
    for _ in range(2):
        feeds.rounds.clear()
        list(pipe.generate([PROMPTS[2]], 5, sampling=how))
        fed.append([round.draft for round in feeds.rounds])
    assert fed[0] == fed[1]
