"""Verifiers: the target's logits after every token of a draft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specframe.contracts.drafts import Acceptance, Draft, Transfer
from specframe.contracts.round import Batch
from specframe.engine.error_words import strategy_name
from specframe_testing import fakes, harness, standard, zoo
from specframe_testing.conformance.decoding_suite import DecodingSuite, fake_pair, real_pair, usual_requests


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
        named = strategy_name(self.role, verifier)
        assert not logits_B1V.isnan().any(), f"{named}: score() must return logits that are numbers, got NaN"
        compare(logits_B1V.cpu(), whole(target, batch, batch.tokens_BS[:, :0]))
        first = Acceptance(torch.zeros_like(batch.lengths_B), logits_B1V.argmax(-1))
        pool.append(batch, first)
        pool.advance(batch, Transfer(Draft(batch.tokens_BS[:, :0]), first))

        batch = pool.batch(pool.live)
        draft_BK = torch.arange(3 * draft_length, device=harness.device()).reshape(3, draft_length)
        compare(verifier.score(batch, Draft(draft_BK)).logits_BTV.cpu(), whole(target, batch, draft_BK))

    def test_scores_are_the_targets(self) -> None:
        """Every score is the target's logit after exactly the tokens before it."""
        self.scored(fakes.fake_target(), 3, torch.testing.assert_close)

    def test_scores_of_a_real_model(self) -> None:
        """On a real architecture scores are the target's own but for rounding."""
        self.scored(zoo.build("qwen3"), 3, lambda a, b: torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4))

    def test_empty_draft(self) -> None:
        """A round without a draft scores one place: plain decoding."""
        self.scored(fakes.fake_target(), 0, torch.testing.assert_close)

    def test_scores_of_a_tree(self) -> None:
        """The score of a node is the target's logit after the row's tokens and the node's own path, and nothing else."""
        if "tree" not in self.object().offers:
            pytest.skip("the verifier scores chains")
        for target, close in ((fakes.fake_target(), 0.0), (zoo.build("gemma3"), 1e-4)):
            asked = harness.requests(harness.random_prompts([5, 1, 8], target.config.vocab_size), 9)
            verifier, pool = self.object(), harness.open_pool(asked)
            verifier.start(harness.open_run(target, rows=3, capacity=32))
            begin(verifier, pool)
            batch = pool.batch(pool.live)
            parents_BN = torch.tensor([[-1, -1, 0, 1, 1, 3], [-1, 0, 1, 2, -1, 4], [-1, -1, -1, 2, 1, 0]])
            tokens_BN, on = torch.arange(18).reshape(3, 6) + 7, harness.device()
            draft = Draft(tokens_BN.to(on), parents_BN=parents_BN.to(on), depth=4)
            found_BTV = verifier.score(batch, draft).logits_BTV.cpu()
            for row, parents in enumerate(parents_BN.tolist()):
                for node in range(-1, 6):
                    path = []
                    while node >= 0:
                        path.append(int(tokens_BN[row, node]))
                        node = parents[node]
                    ids = torch.tensor([[*batch.tokens_BS[row, : batch.lengths[row]].tolist(), *path[::-1]]])
                    place = 0 if not path else tokens_BN[row].tolist().index(path[0]) + 1
                    want = target(ids, position_ids=torch.arange(ids.shape[1])[None]).logits[0, -1]
                    torch.testing.assert_close(found_BTV[row, place], want, atol=close, rtol=close)

    def test_one_pass_per_round(self) -> None:
        """A round that decodes runs the target once, on K + 1 tokens per row."""
        target, draft = real_pair("qwen3")
        feeds = harness.Feeds()
        self.verify(self.pipeline(target, draft, observers=[feeds]), usual_requests(target))
        for round in feeds.decoding:
            assert round.target == [(round.rows, round.report.draft.depth + 1)]

    def test_prompts_in_pieces(self) -> None:
        """A prompt that is read in chunks gives what it gives when it is read at once."""
        target, draft = fake_pair()
        asked = harness.requests(harness.random_prompts([5, 1, 30, 22], target.config.vocab_size), [20, 2, 9, 9])
        options = {"schedule": standard.READING_IN_PIECES, "batch_size": 2}
        for align in standard.ALIGNMENTS[:2]:
            self.verify(self.pipeline(target, draft, align=align, **options), asked)

    def test_plain_decoding(self) -> None:
        """Without a drafter the output is the same."""
        target, _ = fake_pair()
        self.verify(self.pipeline(target, None), usual_requests(target))


def begin(verifier: Any, pool: Any) -> None:
    """Read the prompts and take the target's token after each."""
    batch = pool.batch(pool.admit(3))
    nothing = Draft(batch.tokens_BS[:, :0])
    logits_B1V = verifier.score(batch, nothing).logits_BTV
    first = Acceptance(torch.zeros_like(batch.lengths_B), logits_B1V.argmax(-1))
    pool.append(batch, first)
    pool.advance(batch, Transfer(nothing, first))


@torch.inference_mode()
def whole(target: PreTrainedModel, batch: Batch, draft_BK: torch.Tensor) -> torch.Tensor:
    """Return the logits (B, K + 1, V) of the target run on each whole sequence, without a cache, on the CPU."""
    rows = []
    for row, length in enumerate(batch.lengths):
        ids = torch.cat([batch.tokens_BS[row, :length], draft_BK[row]])[None].cpu()
        rows.append(target(ids, position_ids=torch.arange(ids.shape[1])[None]).logits[0, length - 1 :])
    return torch.stack(rows)
