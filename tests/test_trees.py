"""Drafts that are trees: a small drafter and a rule that walks them, under the standard verifier and alignment."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from products import crossed
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_testing import fakes, harness, zoo

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.round import Batch
from specframe.errors import CompositionError, ContractError
from specframe.text.sampling import Sampling


def decode(target: Any, right: fakes.Right, **options: Any) -> list[harness.Result]:
    """Decode ragged prompts with trees and compare with the reference decoder."""
    asked = harness.requests(harness.random_prompts([5, 1, 11, 3], target.config.get_text_config().vocab_size), 14)
    drafter = fakes.ScriptedTree(harness.truth(target, asked), right)
    made = {"batch_size": 3, "check": True} | options
    results = harness.decode(harness.pipeline(target, drafter, **made), asked)
    harness.assert_exact(target, asked, results)
    return results


@pytest.mark.wide
@pytest.mark.parametrize(("batch_size", "right"), crossed([1, 3], [None, 0, 1, 2, {0: 3, 1: 0, 2: 2, 3: 1}]), ids=str)
def test_tokens_are_the_targets(batch_size: int, right: fakes.Right) -> None:
    """Whatever part of a tree is accepted, the output is the reference decoder's, and all invariants hold."""
    decode(fakes.fake_target(), right, batch_size=batch_size)


@pytest.mark.wide
@pytest.mark.parametrize("architecture", ["gemma3", "qwen3", "gpt2", "mistral"])
def test_real_models(architecture: str) -> None:
    """Branches do not see each other, under windows and with learned positions too; an accepted path is moved whole."""
    decode(zoo.build(architecture), {0: 3, 1: 1, 2: 2, 3: 0})


def test_logprobs_follow_the_path() -> None:
    """The log-probabilities of tokens that a tree gave are those of plain decoding."""
    target = zoo.build("qwen3")
    prompts = harness.random_prompts([5, 3], zoo.VOCABULARY)
    plain = list(harness.pipeline(target, None).generate(prompts, 8, sampling=Sampling(logprobs=0)))
    drafter = fakes.ScriptedTree([[*one.token_ids, *[0] * 8] for one in plain])
    pipe = harness.pipeline(target, drafter)
    for one, other in zip(plain, pipe.generate(prompts, 8, sampling=Sampling(logprobs=0)), strict=True):
        assert other.token_ids == one.token_ids
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-3)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parents_BN": torch.zeros(3, 2, dtype=torch.long)}, r"parents_BN of shape \(B, N\) = \(3, 6\), got \(3, 2\)"),
        ({"counts_B": torch.zeros(1, dtype=torch.long)}, r"counts_B of shape \(B,\) = \(3,\), got \(1,\)"),
    ],
    ids=["shape", "counts"],
)
def test_a_wrong_tree_is_told(change: dict[str, Any], said: str) -> None:
    """Parents and counts of another shape are one sentence that names the drafter."""

    class Wrong(fakes.ScriptedTree):
        def propose(self, batch: Batch, budget: Budget) -> Draft:
            draft = super().propose(batch, budget)
            if not budget.depth:
                return draft
            return Draft(**{"tokens_BN": draft.tokens_BN, "parents_BN": draft.parents_BN, "depth": 3} | change)

    target = fakes.fake_target()
    asked = harness.requests(harness.random_prompts([5, 1, 11], 61), 9)
    pipe = harness.pipeline(target, Wrong(harness.truth(target, asked)), batch_size=3)
    with pytest.raises(ContractError, match=rf"^drafter .*Wrong: propose\(\) must return {said}"):
        harness.decode(pipe, asked)


@pytest.mark.wide
def test_a_dynamic_tree_is_not_drawn() -> None:
    """A tree that is chosen by its tokens' scores is refused under a rule whose drafts are drawn at random."""
    target = fakes.fake_target()
    given = {"drafter": ModelDrafter(tree="dynamic"), "accept": "rejection"}
    with pytest.raises(
        CompositionError,
        match=r"^drafter 'model' needs 'prunable' to be offered, and acceptance rule 'rejection' does not",
    ):
        harness.pipeline(target, fakes.fake_draft(target), **given)
    harness.pipeline(target, fakes.fake_draft(target), **given | {"accept": "rejection,siblings=likely"})


@pytest.mark.wide
@pytest.mark.parametrize(("siblings", "drawn"), [("distinct", "independent"), ("independent", "distinct")])
def test_siblings_drawn_in_another_way_are_refused(siblings: str, drawn: str) -> None:
    """A drafter that draws siblings itself, and says how, is refused by a rule that is made for the other way."""

    class Drawing(fakes.ScriptedTree):
        needs = frozenset({"tree", "move", drawn})

    for rule in ("rejection", "traversal"):
        with pytest.raises(CompositionError, match=f"needs '{drawn}' to be offered"):
            harness.pipeline(fakes.fake_target(), Drawing([[]]), accept=f"{rule},siblings={siblings}")
        harness.pipeline(fakes.fake_target(), Drawing([[]]), accept=f"{rule},siblings={drawn}")
    harness.pipeline(fakes.fake_target(), Drawing([[]]), accept="gumbel")
