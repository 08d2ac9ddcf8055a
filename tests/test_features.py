"""Drafters that read the target's features: a small head that receives outcomes, of prompts and prefill chunks, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specframe_testing import fakes, harness, zoo

from specframe.contracts.drafts import Budget, Draft, Scores
from specframe.contracts.reports import Outcome
from specframe.contracts.roles import Verifier
from specframe.contracts.round import Batch
from specframe.errors import CompositionError


class Head:
    """Proposes the second choice of the target's own head for the last token's features, over and over.

    The features of the token before the bonus token give the bonus token itself: :meth:`observe` counts where they do not.
    """

    needs = frozenset({"hidden"})
    offers = frozenset({"chain"})

    def start(self, run: Any) -> None:
        """Ask for the states after the final norm."""
        self._model = run.target.runner.module
        self._last = int(self._model.config.get_text_config().num_hidden_layers)
        run.target.capture((self._last,))
        self._ideas: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self.wrong, self.told, self.pieces = 0, 0, 0

    def observe(self, outcome: Outcome) -> None:
        """Take the features of each row's last accepted token."""
        states_BTD = outcome.scores.hidden[self._last]
        batch, acceptance = outcome.batch, outcome.acceptance
        if batch.prefill:
            for sequence, length in zip(batch.sequences, outcome.lengths.tolist(), strict=True):
                uncached = min(length, batch.uncached)
                self.read[sequence.request.index] = (
                    self.read.get(sequence.request.index, 0) + uncached - min(batch.left, uncached)
                )
            assert states_BTD.shape[1] == batch.uncached - batch.left
        if acceptance is None:
            self.pieces += 1
            return
        place_B = states_BTD.shape[1] - 1 - outcome.draft.nodes + acceptance.accepted_B
        features_BD = states_BTD[torch.arange(len(batch)), place_B]
        best_B2 = self._model.lm_head(features_BD).topk(2, dim=-1).indices
        bonus_B = acceptance.tokens_BT.gather(1, acceptance.accepted_B[:, None])[:, 0]
        self.wrong += int((best_B2[:, 0] != bonus_B).sum())
        self.told += len(batch)
        self._ideas.update(zip(map(id, batch.sequences), best_B2[:, 1].tolist(), strict=True))

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return each row's idea, repeated."""
        ideas_B = torch.tensor([self._ideas.get(id(sequence), 0) for sequence in batch.sequences])
        return Draft(ideas_B[:, None].repeat(1, budget.depth))


@pytest.mark.wide
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec"])
def test_features_are_those_of_the_accepted_tokens(align: str) -> None:
    """Under every alignment the features reported with an acceptance result are those the bonus token was chosen by."""
    target, head = zoo.build("qwen3"), Head()
    asked = harness.requests(harness.random_prompts([5, 1, 12, 3], zoo.VOCABULARY), 12)
    harness.check(harness.pipeline(target, head, align=align, batch_size=3, draft_length=3), asked)
    assert head.told > 12
    assert head.wrong == 0


class Blind(Verifier):
    """A verifier whose scores have logits alone."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"chain"})

    def score(self, batch: Batch, draft: Draft) -> Scores:
        """Nothing is scored."""
        raise NotImplementedError


def test_a_verifier_without_features_is_refused() -> None:
    """A head with a verifier that gives logits alone is refused in one sentence."""
    with pytest.raises(
        CompositionError, match=r"^drafter 'Head' needs 'hidden' to be offered, and verifier 'Blind' does not"
    ):
        harness.pipeline(fakes.fake_target(), Head(), verify=Blind())
