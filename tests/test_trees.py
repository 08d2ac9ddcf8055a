"""Drafts that are trees: a small drafter and a rule that walks them, under the standard verifier and alignment."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specframe_std.acceptance.greedy import Greedy

from specframe.contracts.cache import Placement
from specframe.contracts.drafts import Block, Budget, Draft, Scores, Verdict
from specframe.contracts.round import Batch
from specframe.errors import CompositionError, ContractError
from specframe.testing import fakes, harness, zoo
from specframe.text.sampling import Sampling

PARENTS = [-1, -1, 0, 1, 1, 3]
"""Node 1, 3 and 5 are the path of right tokens; 0, 2 and 4 branch off with wrong ones."""
NODES = {1: 2, 2: 5, 3: 6}
"""The nodes of the tree cut to a depth."""
RIGHT = {1: 0, 3: 1, 5: 2}
"""The place after the row's end of each right node."""


class TreeDrafter(fakes.ScriptedDrafter):
    """Proposes the script's tokens with a wrong branch at every node."""

    needs = frozenset({"tree", "move"})
    offers = frozenset({"tree"})

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return the tree of six nodes; an empty draft where nothing is asked for."""
        if budget.depth == 0:
            return Draft(batch.tokens_BS[:, :0])
        chain_BK = super().propose(batch, Budget(3)).tokens_BN
        wrong_B1 = (chain_BK[:, :1] + 7) % self._vocabulary
        columns = [chain_BK[:, RIGHT[node]][:, None] if node in RIGHT else wrong_B1 for node in range(len(PARENTS))]
        nodes = NODES[budget.depth]
        parents_BN = torch.tensor([PARENTS[:nodes]]).repeat(len(batch), 1)
        return Draft(torch.cat(columns[:nodes], dim=1), parents_BN=parents_BN, depth=budget.depth)


class Walk(Greedy):
    """Goes from the row's last token to the child that is the target's choice, as long as there is one."""

    offers = frozenset({"lossless", "draft-invariant", "tree"})

    def judge(self, batch: Batch, draft: Draft, scores: Scores) -> Verdict:
        """Return the path of agreeing nodes and the target's choice after it."""
        choices_BT = scores.logits_BTV.argmax(-1)
        if draft.parents_BN is None:
            return super().judge(batch, draft, scores)
        here_B1 = torch.full_like(choices_BT[:, :1], -1)
        stands_B1 = torch.ones_like(here_B1, dtype=torch.bool)
        path, tokens, accepted_B = [], [], torch.zeros_like(batch.lengths_B)
        for _ in range(draft.depth):
            choice_B1 = choices_BT.gather(1, here_B1 + 1)
            agrees_BN = (draft.parents_BN == here_B1) & (draft.tokens_BN == choice_B1)
            stands_B1 = stands_B1 & agrees_BN.any(1, keepdim=True)
            here_B1 = torch.where(stands_B1, agrees_BN.long().argmax(1, keepdim=True), here_B1)
            path.append(here_B1.clamp(min=0))
            tokens.append(choice_B1)
            accepted_B = accepted_B + stands_B1[:, 0]
        tokens.append(choices_BT.gather(1, here_B1 + 1))
        return Verdict(accepted_B, torch.cat(tokens, dim=1), torch.cat(path, dim=1))


class Trees:
    """The budget of the tree."""

    needs = offers = frozenset()
    maximum = Budget(3, 6)

    def budget(self, batch: Batch) -> Budget:
        """Return the whole budget."""
        return self.maximum

    def observe(self, report: Any) -> None:
        """Nothing to learn."""


def decode(target: Any, right: fakes.Right, **options: Any) -> list[harness.Result]:
    """Decode ragged prompts with trees and compare with the reference decoder."""
    asked = harness.requests(harness.random_prompts([5, 1, 11, 3], target.config.get_text_config().vocab_size), 14)
    drafter = TreeDrafter(harness.truth(target, asked), right)
    made = {"accept": Walk(), "draft_length": Trees(), "batch_size": 3, "check": True} | options
    results = harness.decode(harness.pipeline(target, drafter, **made), asked)
    harness.assert_exact(target, asked, results)
    return results


@pytest.mark.parametrize("right", [None, 0, 1, 2, {0: 3, 1: 0, 2: 2, 3: 1}], ids=str)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_tokens_are_the_targets(batch_size: int, right: fakes.Right) -> None:
    """Whatever part of a tree stands, the output is the reference decoder's, and all invariants hold."""
    decode(fakes.fake_target(), right, batch_size=batch_size)


@pytest.mark.parametrize("architecture", ["qwen3", "gemma3", "gpt2", "mistral"])
def test_real_models(architecture: str) -> None:
    """Branches do not see each other, under windows and with learned positions too; an accepted path is moved whole."""
    decode(zoo.build(architecture), {0: 3, 1: 1, 2: 2, 3: 0})


def test_recorded_forwards() -> None:
    """Recordings have buffers for what the nodes of a tree see."""
    decode(zoo.build("qwen3"), {0: 3, 1: 1, 2: 2, 3: 0}, graphs="on", check=False)


def test_flex_attention() -> None:
    """Attention without masks keeps branches apart as masks do."""
    with pytest.warns(RuntimeWarning, match="'masked' is faster"):
        decode(zoo.build("qwen3"), {0: 3, 1: 1, 2: 2, 3: 0}, attention="flex", check=False)


def test_full_acceptance_yields_the_depth_and_one() -> None:
    """A tree whose longest path is right gives depth + 1 tokens a round, and its nodes are counted as drafted."""
    results = decode(fakes.fake_target(eos=60), None, batch_size=4)
    metrics = results[0].metrics
    assert metrics.mean_acceptance_length > 3
    assert 2 * metrics.num_spec_steps < metrics.num_draft_tokens <= 6 * metrics.num_spec_steps


def test_processors_go_by_the_path() -> None:
    """A processor that looks at the prefix is shown each node's own path."""
    target = zoo.build("qwen3")
    prompts = harness.random_prompts([5, 3, 9], zoo.VOCABULARY)
    how = Sampling(repetition_penalty=1.7)
    plain = [one.token_ids for one in harness.pipeline(target, None).generate(prompts, 12, sampling=how)]
    drafter = TreeDrafter([[*ids, *[0] * 8] for ids in plain])
    pipe = harness.pipeline(target, drafter, accept=Walk(), draft_length=Trees())
    results = list(pipe.generate(prompts, 12, sampling=how))
    assert [one.token_ids for one in results] == plain
    assert results[0].metrics.mean_acceptance_length > 2


def test_logprobs_follow_the_path() -> None:
    """The log-probabilities of tokens that a tree gave are those of plain decoding."""
    target = zoo.build("qwen3")
    prompts = harness.random_prompts([5, 3], zoo.VOCABULARY)
    plain = list(harness.pipeline(target, None).generate(prompts, 8, sampling=Sampling(logprobs=0)))
    drafter = TreeDrafter([[*one.token_ids, *[0] * 8] for one in plain])
    pipe = harness.pipeline(target, drafter, accept=Walk(), draft_length=Trees())
    for one, other in zip(plain, pipe.generate(prompts, 8, sampling=Sampling(logprobs=0)), strict=True):
        assert other.token_ids == one.token_ids
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"accept": "greedy"}, "acceptance rule Greedy does not"),
        ({"align": "eqspec"}, "alignment EqSpec does not"),
    ],
)
def test_what_cannot_take_trees_is_refused(options: dict[str, Any], said: str) -> None:
    """A combination in which somebody knows chains alone is refused in one sentence, before anything is decoded."""
    with pytest.raises(
        CompositionError, match=rf"^drafter TreeDrafter needs 'tree' to be offered, and {said} offer it$"
    ):
        decode(fakes.fake_target(), None, **options)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parents_BN": torch.tensor([[0, -1, 0, 1, 1, 3]] * 3)}, "parents_BN that are -1 or an earlier node"),
        ({"parents_BN": torch.zeros(3, 2, dtype=torch.long)}, r"parents_BN of shape \(B, N\) = \(3, 6\), got \(3, 2\)"),
        ({"depth": 9}, "a depth from 0 to 3, got 9"),
        ({"counts_B": torch.zeros(1, dtype=torch.long)}, r"counts_B of shape \(B,\) = \(3,\), got \(1,\)"),
    ],
    ids=["parents", "shape", "depth", "counts"],
)
def test_a_wrong_tree_is_told(change: dict[str, Any], said: str) -> None:
    """Parents, depths and counts that cannot be are one sentence that names the drafter."""

    class Wrong(TreeDrafter):
        def propose(self, batch: Batch, budget: Budget) -> Draft:
            draft = super().propose(batch, budget)
            if not budget.depth:
                return draft
            return Draft(**{"tokens_BN": draft.tokens_BN, "parents_BN": draft.parents_BN, "depth": 3} | change)

    target = fakes.fake_target()
    asked = harness.requests(harness.random_prompts([5, 1, 11], 61), 9)
    pipe = harness.pipeline(
        target, Wrong(harness.truth(target, asked)), accept=Walk(), draft_length=Trees(), batch_size=3
    )
    with pytest.raises(ContractError, match=rf"^drafter .*Wrong: propose\(\) must return {said}"):
        harness.decode(pipe, asked)


def test_a_place_sees_itself_and_its_ancestors() -> None:
    """The closure of a block's parents is each place's path, and its length is the depth."""
    block = Block(
        torch.zeros(2, 7, dtype=torch.long), -1, torch.tensor([[-1, 0, 0, 1, 2, 2, 4], [-1, 0, 1, 2, 3, 4, 5]])
    )
    assert block.sees_BTT is not None
    for row, parents in enumerate(block.parents_BT.tolist()):  # type: ignore[union-attr]
        for place in range(7):
            path, here = set(), place
            while here >= 0:
                path.add(here)
                here = parents[here]
            assert set(block.sees_BTT[row, place].nonzero()[:, 0].tolist()) == path
            assert int(block.depth_BT()[row, place]) == len(path) - 1


@pytest.mark.parametrize("window", [None, 2])
def test_visibility_against_brute_force(window: int | None) -> None:
    """A query sees the cached slots before it, and of the tokens fed with it those on its own path, within its window."""
    order_BT = torch.tensor([[4, 5, 5, 6]])
    slots_BT = torch.tensor([[4, 5, 6, 7]])
    key_order_BS = torch.tensor([[0, 1, 2, 3, 4, 5, 5, 6, -1]])
    paths = [[0], [0, 1], [0, 2], [0, 2, 3]]
    sees_BTT = torch.zeros(1, 4, 4, dtype=torch.bool)
    for place, path in enumerate(paths):
        sees_BTT[0, place, path] = True
    placement = Placement(order_BT, slots_BT, order_BT, key_order_BS, sees_BTT=sees_BTT)
    seen = placement.visible(torch.tensor([[0]]), torch.arange(4)[:, None], torch.arange(9)[None], window)
    for query in range(4):
        for slot in range(9):
            key, order = int(key_order_BS[0, slot]), int(order_BT[0, query])
            fed = slot - 4 if 4 <= slot < 8 else None
            right = 0 <= key <= order and (fed is None or fed in paths[query])
            right = right and (window is None or key > order - window)
            assert bool(seen[query, slot]) == right, (query, slot)
