"""Verifiers: the target's logits after every token of a draft."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from specframe.contracts.drafts import Draft, Verdict
from specframe.contracts.round import Batch
from specframe.engine.blame import called
from specframe.testing import fakes, harness, zoo
from specframe.testing.conformance.decoding import DecodingSuite, fake_pair, real_pair, usual_requests


class VerifierSuite(DecodingSuite):
    """Tests of a verifier."""

    role = "verifier"

    def scored(self, target: PreTrainedModel, draft_length: int, compare: Callable) -> None:
        """Score prompts, then a draft of arbitrary tokens, and compare with the target run on whole sequences."""
        asked = harness.requests(harness.random_prompts([5, 1, 8], target.config.vocab_size), 9)
        run = harness.open_run(target, rows=3, capacity=32)
        verifier, pool = self.object(), harness.open_pool(asked)
        verifier.start(run)
        batch = pool.batch(pool.admit(3))
        logits_B1V = verifier.score(batch, Draft(batch.tokens_BS[:, :0])).logits_BTV
        named = called(self.role, verifier)
        assert not logits_B1V.isnan().any(), f"{named}: score() must return logits that are numbers, got NaN"
        compare(logits_B1V, whole(target, batch, torch.empty(3, 0, dtype=torch.long)))
        pool.advance(
            batch, Draft(batch.tokens_BS[:, :0]), Verdict(torch.zeros(3, dtype=torch.long), logits_B1V.argmax(-1))
        )

        batch = pool.batch(pool.live)
        draft_BK = torch.arange(3 * draft_length).reshape(3, draft_length)
        compare(verifier.score(batch, Draft(draft_BK)).logits_BTV, whole(target, batch, draft_BK))

    def test_scores_are_the_targets(self) -> None:
        """Every score is the target's logit after exactly the tokens before it."""
        self.scored(fakes.fake_target(), 3, torch.testing.assert_close)

    def test_scores_of_a_real_model(self) -> None:
        """On a real architecture scores are the target's own but for rounding."""
        self.scored(zoo.build("qwen3"), 3, lambda a, b: torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4))

    def test_empty_draft(self) -> None:
        """A round without a draft scores one place: plain decoding."""
        self.scored(fakes.fake_target(), 0, torch.testing.assert_close)

    def test_one_pass_per_round(self) -> None:
        """A round that decodes runs the target once, on K + 1 tokens per row."""
        target, draft = real_pair("qwen3")
        feeds = harness.Feeds()
        self.verify(self.pipeline(target, draft, observers=[feeds]), usual_requests(target))
        for round in feeds.decoding:
            assert round.target == [(round.rows, round.report.draft.depth + 1)]

    def test_prompts_in_pieces(self) -> None:
        """A prompt that is read in pieces gives what it gives when it is read at once."""
        target, draft = fake_pair()
        asked = harness.requests(harness.random_prompts([5, 1, 30, 22], target.config.vocab_size), [20, 2, 9, 9])
        options = {"schedule": "continuous,piece=4", "batch_size": 2}
        for align in ("ragged", "eqspec"):
            self.verify(self.pipeline(target, draft, align=align, **options), asked)

    def test_plain_decoding(self) -> None:
        """Without a drafter the output is the same."""
        target, _ = fake_pair()
        self.verify(self.pipeline(target, None), usual_requests(target))


@torch.inference_mode()
def whole(target: PreTrainedModel, batch: Batch, draft_BK: torch.Tensor) -> torch.Tensor:
    """Return the logits (B, K + 1, V) of the target run on each whole sequence, without a cache."""
    rows = []
    for row, length in enumerate(batch.lengths):
        ids = torch.cat([batch.tokens_BS[row, :length], draft_BK[row]])[None]
        rows.append(target(ids, position_ids=torch.arange(ids.shape[1])[None]).logits[0, length - 1 :])
    return torch.stack(rows)
