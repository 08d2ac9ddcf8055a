"""Acceptance rules: which draft tokens are accepted, and the token after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch.nn.functional import one_hot

from specframe.contracts.drafts import Acceptance, Draft, Scores
from specframe_testing import fakes, harness
from specframe_testing.conformance.decoding_suite import DecodingSuite, fake_pair, usual_requests

VOCABULARY = 11
ROWS = 64
FAULTS = {"nan": float("nan"), "infinity": float("inf"), "nothing": float("-inf"), "one nan": float("nan")}
TREE = [-1, -1, 0, 0]
"""A tree whose first node has two children."""


class AcceptanceRuleSuite(DecodingSuite):
    """Tests of an acceptance rule. Targets and drafts here are certain: all that counts is where they are equal."""

    role = "acceptance rule"

    @property
    def lossless(self) -> bool:
        """Whether the rule is declared lossless."""
        return "lossless" in self.object().offers

    def accept(self, choices: list[list[int]], drafted: list[list[int]]) -> tuple[Acceptance, list[list[int]]]:
        """Apply the rule with a target that is certain of ``choices``; return the acceptance result and the accepted tokens."""
        return self.accept_logits(certain(torch.tensor(choices, device=harness.device())), drafted)

    def accept_tree(self, choices: list[list[int]], drafted: list[list[int]], parents: list[int]) -> list[list[int]]:
        """Apply the rule to trees; return the accepted tokens. The target has ``choices`` after the row and each node."""
        on = harness.device()
        logits_BTV, tokens_BN = certain(torch.tensor(choices, device=on)), torch.tensor(drafted, device=on)
        rule, batch = self.opened(len(drafted))
        deep = list[int]()
        for parent in parents:
            deep.append(1 if parent < 0 else deep[parent] + 1)
        parents_1N = torch.tensor([parents], device=on)
        draft = Draft(tokens_BN, certain(tokens_BN), parents_1N, depth=max(deep))
        acceptance = rule.accept(batch, draft, Scores(logits_BTV))
        assert acceptance.path_BT is not None
        assert acceptance.path_BT.shape == (len(drafted), max(deep))
        assert acceptance.tokens_BT.shape == (len(drafted), max(deep) + 1)
        found = standing(acceptance)
        for row, tokens in enumerate(found):
            path = acceptance.path_BT[row, : len(tokens) - 1].tolist()
            assert [parents[node] for node in path] == [-1, *path][:-1], "the path is none"
            assert [drafted[row][node] for node in path] == tokens[:-1], "the path has other tokens"
        return found

    def require_trees(self) -> None:
        """Skip a test of trees for a rule of chains."""
        if "tree" not in self.object().offers:
            pytest.skip("the rule accepts chains alone")

    def test_tree_path(self) -> None:
        """In a tree the path of the target's own tokens is accepted, whichever branch it takes and wherever it ends."""
        self.require_trees()
        self.require_lossless()
        parents = [-1, -1, 0, 1, 1, 4]
        drafted = [[3, 4, 5, 6, 7, 8]] * 5
        choices = [
            [4, 1, 7, 1, 1, 8, 9],  # 4, 7, 8 and 9
            [3, 5, 1, 2, 1, 1, 1],  # 3, 5 and 2
            [4, 1, 9, 1, 1, 1, 1],  # 4 and 9
            [9, 5, 7, 1, 1, 8, 1],  # 9: what lies below rejected nodes does not count
            [4, 5, 6, 1, 2, 8, 1],  # 4, 6 and 2
        ]
        expected = [[4, 7, 8, 9], [3, 5, 2], [4, 9], [9], [4, 6, 2]]
        assert self.accept_tree(choices, drafted, parents) == expected
        assert self.accept_tree(choices[::-1], drafted, parents) == expected[::-1]

    def test_tree_that_is_a_chain(self) -> None:
        """A tree without branches has the result of the chain that it is."""
        self.require_trees()
        self.require_lossless()
        assert self.accept_tree([[3, 4, 5], [6, 7, 8]], [[3, 4], [6, 9]], [-1, 0]) == [[3, 4, 5], [6, 7]]

    def opened(self, rows: int) -> tuple[Any, Any]:
        """Return a rule that has started, and a batch of ``rows`` rows."""
        rule: Any = self.object()
        rule.start(harness.open_run(fakes.fake_target(), rows=rows, capacity=8))
        asked = harness.requests([[1 + row] for row in range(rows)], 9)
        pool = harness.open_pool([attrs.evolve(request, stream=request.index) for request in asked])
        return rule, pool.batch(pool.admit(rows))

    def require_invariant(self) -> None:
        """Skip a test of rules whose tokens do not depend on the draft."""
        if "draft-invariant" not in self.object().offers:
            pytest.skip("the rule's tokens depend on the draft")

    def test_path_of_choices(self) -> None:
        """Where the draft changes no token, a tree's path is that of the rule's own choices, each at the depth of its place."""
        self.require_trees()
        self.require_invariant()
        rule, batch = self.opened(16)
        parents, tokens, deepest = [-1, -1, 0, 0, 2, 1], [0, 1, 0, 1, 2, 2], 3
        on, logits_BTV = harness.device(), 2 * at_random(16, 7, 3)
        tokens_BN, parents_1N = torch.tensor([tokens] * 16, device=on), torch.tensor([parents], device=on)
        drafted = Draft(tokens_BN, logits_BTV[:, 1:], parents_1N, depth=deepest)
        acceptance = rule.accept(batch, drafted, Scores(logits_BTV))
        for row, count in enumerate(acceptance.accepted_B.tolist()):
            path, place = list[int](), 0
            while place >= 0:
                path.append(int(rule.choose(batch, len(path), logits_BTV[:, place])[row]))
                children = [node for node, parent in enumerate(parents) if parent == place - 1]
                place = 1 + next((node for node in children if tokens[node] == path[-1]), -2)
            assert acceptance.tokens_BT[row, : count + 1].tolist() == path
        assert set(acceptance.accepted_B.tolist()) == {0, 1, 2, 3}, "the drafts are not what the test means them to be"

    def test_first_sibling(self) -> None:
        """Where the draft changes no token, the first child proposed is the token that the rule would choose there."""
        self.require_trees()
        self.require_invariant()
        rule, batch = self.opened(8)
        logits_B1V = at_random(8, 1, VOCABULARY)
        for offset in (0, 1, 3):
            tokens_BFC, _ = rule.siblings(batch, offset, logits_B1V, 2)
            assert tokens_BFC[:, 0, 0].tolist() == rule.choose(batch, offset, logits_B1V[:, 0]).tolist()

    def test_siblings(self) -> None:
        """The children that a drafter should propose are token ids, with the logarithms of probabilities, for all nodes at once."""
        self.require_trees()
        rule, batch = self.opened(2)
        logits_BFV = at_random(2, 3, VOCABULARY)
        tokens_BFC, scores_BFC = rule.siblings(batch, 1, logits_BFV, 4)
        assert tokens_BFC.shape == scores_BFC.shape == (2, 3, 4)
        assert bool(((tokens_BFC >= 0) & (tokens_BFC < VOCABULARY)).all())
        assert bool((scores_BFC <= 0).all())
        if "independent" not in rule.offers or "distinct" in rule.offers:
            assert all(len(set(children)) == 4 for row in tokens_BFC.tolist() for children in row), (
                "siblings are the same"
            )

    def accept_logits(self, logits_BTV: torch.Tensor, drafted: list[list[int]]) -> tuple[Acceptance, list[list[int]]]:
        """Apply the rule to drafts and the target's logits, on the device of the suites."""
        rule, batch = self.opened(len(drafted))
        tokens_BK = torch.tensor(drafted, dtype=torch.long, device=harness.device()).reshape(len(drafted), -1)
        draft = Draft(tokens_BK, certain(tokens_BK))
        before = logits_BTV.clone(), tokens_BK.clone()
        acceptance = rule.accept(batch, draft, Scores(logits_BTV))
        assert torch.equal(logits_BTV, before[0]), "the rule changed the logits"
        assert torch.equal(tokens_BK, before[1]), "the rule changed the draft"
        return acceptance, standing(acceptance)

    def test_full_acceptance(self) -> None:
        """A draft that is right in full yields K + 1 tokens."""
        self.require_lossless()
        assert self.accept([[3, 4, 5, 6]], [[3, 4, 5]])[1] == [[3, 4, 5, 6]]

    @pytest.mark.parametrize("wrong", [0, 1, 2])
    def test_first_wrong_token_ends_the_draft(self, wrong: int) -> None:
        """Acceptance ends before the first wrong token, and the target's token replaces it; later right tokens do not count."""
        self.require_lossless()
        drafted = [3, 4, 5]
        drafted[wrong] = 9
        assert self.accept([[3, 4, 5, 6]], [drafted])[1] == [[3, 4, 5][: wrong + 1]]

    def test_rows_are_judged_alone(self) -> None:
        """Each row's result depends on its own tokens, not on other rows."""
        self.require_lossless()
        choices = [[3, 4, 5], [6, 7, 8], [1, 2, 3]]
        drafted = [[3, 4], [9, 7], [1, 9]]
        assert self.accept(choices, drafted)[1] == [[3, 4, 5], [6], [1, 2]]
        assert self.accept(choices[::-1], drafted[::-1])[1] == [[1, 2], [6], [3, 4, 5]]

    def test_a_draft_without_distribution(self) -> None:
        """Where a draft's logits are no distribution, a row's result is as if nothing had been drafted from there on."""
        self.require_lossless()
        target_BTV, draft = drawn(None)
        by_rule, needed = self.judging(), "logits" in self.object().needs
        sound = by_rule(target_BTV, draft)
        for place in range(draft.nodes):
            cut = by_rule(target_BTV[:, : place + 1], ended(draft, place)) if needed else sound
            for fault in FAULTS:
                found = by_rule(target_BTV, broken_draft(draft, fault, place))
                assert found == every_other(cut, sound), f"{fault} at place {place}"

    def test_a_tree_without_distribution(self) -> None:
        """In a tree whose logits are no distribution after some node, all other nodes have their usual result."""
        self.require_trees()
        self.require_lossless()
        target_BTV, draft = drawn(TREE)
        by_rule, needed = self.judging(), "logits" in self.object().needs
        sound = by_rule(target_BTV, draft)
        cut = by_rule(target_BTV[:, :3], ended(draft, 2)) if needed else sound
        for fault in FAULTS:
            assert by_rule(target_BTV, broken_draft(draft, fault, 2)) == every_other(cut, sound), fault

    def test_filler_is_as_if_it_had_not_been_drafted(self) -> None:
        """Up to the nodes that are meant, and after them, tokens are those of a draft without the others."""
        by_rule = self.judging()
        chains, trees = [(None, 0), (None, 1), (None, 2), (None, 3)], [(TREE, 2)]
        for parents, count in [*chains, *(trees if "tree" in self.object().offers else [])]:
            target_BTV, draft = drawn(parents)
            filled = attrs.evolve(draft, counts_B=torch.full_like(draft.tokens_BN[:, 0], count))
            assert by_rule(target_BTV, filled) == by_rule(target_BTV[:, : count + 1], ended(draft, count)), (
                parents,
                count,
            )

    def test_a_target_without_distribution(self) -> None:
        """Up to the place where the target's logits are no distribution, tokens are those of a draft that ends there.

        What is beyond is cut by the loop, which ends the sequence with an error.
        """
        self.require_lossless()
        by_rule = self.judging()
        chains, trees = [(None, 0, 0), (None, 2, 2)], [(TREE, 1, 2)] if "tree" in self.object().offers else []
        for parents, place, last in [*chains, *trees]:
            target_BTV, draft = drawn(parents)
            sound, cut = by_rule(target_BTV, draft), by_rule(target_BTV[:, : last + 1], ended(draft, last))
            for fault in FAULTS:
                found = by_rule(broken(target_BTV, fault, place), draft)
                assert [row[:place] for row in found[::2]] == [row[:place] for row in cut[::2]], fault
                assert found[1::2] == sound[1::2], fault

    def judging(self) -> Callable[[torch.Tensor, Draft], list[list[int]]]:
        """Return a function that applies the rule to a draft of :data:`ROWS` rows and returns each row's accepted tokens."""
        rule, batch = self.opened(ROWS)

        def by_rule(target_BTV: torch.Tensor, draft: Draft) -> list[list[int]]:
            return standing(rule.accept(batch, draft, Scores(target_BTV)).within(draft))

        return by_rule

    def test_empty_draft(self) -> None:
        """Without a draft the acceptance result is one token, the target's own."""
        assert self.accept([[3], [4]], [[], []])[1] == [[3], [4]]

    def test_shapes(self) -> None:
        """An acceptance result has whole numbers: accepted (B), between 0 and K, and tokens (B, K + 1)."""
        acceptance, _ = self.accept([[3, 4, 5], [6, 7, 8]], [[3, 4], [9, 7]])
        assert acceptance.accepted_B.shape == (2,)
        assert acceptance.tokens_BT.shape == (2, 3)
        assert {acceptance.accepted_B.dtype, acceptance.tokens_BT.dtype} == {torch.long}
        assert 0 <= int(acceptance.accepted_B.min()) <= int(acceptance.accepted_B.max()) <= 2

    def test_promises(self) -> None:
        """A rule's needs and offers are names, and only a lossless one claims to be draft-invariant."""
        rule = self.object()
        assert all(isinstance(word, str) for word in rule.needs | rule.offers)
        assert "draft-invariant" not in rule.offers or "lossless" in rule.offers

    def test_an_invariant_rule_does_not_mind_the_draft(self) -> None:
        """A draft-invariant rule's committed tokens are a beginning of the same tokens for every draft."""
        self.require_invariant()
        logits_BTV = at_random(3, 5, VOCABULARY, seed=1)
        generator = torch.Generator().manual_seed(2)
        drafts: list[list[list[int]]] = [[[]] * 3]
        drafts += [torch.randint(VOCABULARY, (3, 4), generator=generator).tolist() for _ in range(40)]
        found: list[list[int]] = [[] for _ in range(3)]
        for drafted in drafts:
            for row, tokens in enumerate(self.accept_logits(logits_BTV[:, : len(drafted[0]) + 1], drafted)[1]):
                shared = min(len(tokens), len(found[row]))
                assert tokens[:shared] == found[row][:shared]
                found[row] = max(found[row], tokens, key=len)
        assert max(map(len, found)) > 1, "no draft token was accepted"

    def test_trees_are_decoded(self) -> None:
        """Rounds of trees give the reference decoder's tokens, and those whose longest path is right, K + 1 tokens each."""
        self.require_trees()
        self.require_lossless()
        target, _ = fake_pair()
        asked = usual_requests(target, new=9, stop=False)
        for right, rounds in ((None, 2), ({0: 3, 1: 0, 2: 2, 3: 1, 4: 3}, None)):
            drafter = fakes.ScriptedTree(harness.truth(target, asked), right)
            results = self.verify(self.pipeline(target, drafter, draft_length=3), asked)
            assert rounds is None or {result.metrics.num_spec_steps for result in results} == {rounds}

    def test_right_drafts_stand(self) -> None:
        """Rounds of right drafts yield K + 1 tokens each, up to the end."""
        self.require_lossless()
        target, _ = fake_pair()
        asked = usual_requests(target, new=11, stop=False)
        results = self.verify(self.pipeline(target, fakes.always_right(harness.truth(target, asked))), asked)
        assert {result.metrics.num_spec_steps for result in results} == {2}
        assert {result.metrics.num_accepted_draft_tokens for result in results} == {8}


def at_random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return random logits on the device of the suites."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(harness.device())


def standing(acceptance: Acceptance) -> list[list[int]]:
    """Return the tokens of each row that an acceptance result commits."""
    rows = zip(acceptance.accepted_B.tolist(), acceptance.tokens_BT.tolist(), strict=True)
    return [tokens[: count + 1] for count, tokens in rows]


def certain(tokens: torch.Tensor) -> torch.Tensor:
    """Return logits that leave no doubt about these tokens."""
    return fakes.CERTAIN * one_hot(tokens, VOCABULARY).float()


def drawn(parents: list[int] | None) -> tuple[torch.Tensor, Draft]:
    """Return a target's logits at random, and a chain or a tree that was drawn from it, with other logits."""
    generator = torch.Generator().manual_seed(3)
    nodes = 3 if parents is None else len(parents)
    above = [*range(nodes)] if parents is None else [parent + 1 for parent in parents]
    target_BTV = torch.randn(ROWS, nodes + 1, VOCABULARY, generator=generator)
    logits_BNV = target_BTV[:, above] + 1.5 * torch.randn(ROWS, VOCABULARY, generator=generator)[:, None]
    noise_BTV = -torch.empty(ROWS, nodes + 1, VOCABULARY).exponential_(generator=generator).log()
    best_BTV = (target_BTV + noise_BTV).argsort(-1, descending=True)
    siblings = [above[:node].count(place) for node, place in enumerate(above)]
    tokens_BN = best_BTV[:, above, siblings]
    device = harness.device()
    draft = Draft(tokens_BN.to(device), logits_BNV.to(device))
    target_BTV = target_BTV.to(device)
    if parents is None:
        return target_BTV, draft
    return target_BTV, attrs.evolve(draft, parents_BN=torch.tensor([parents], device=device), depth=2)


def broken(logits_BTV: torch.Tensor, fault: str, place: int) -> torch.Tensor:
    """Return logits that are no distribution from a place on in every other row; "one nan": one logit of each place."""
    logits_BTV = logits_BTV.clone()
    reach = slice(1) if fault in ("one nan", "infinity") else slice(None)
    logits_BTV[::2, place:, reach] = FAULTS[fault]
    return logits_BTV


def broken_draft(draft: Draft, fault: str, place: int) -> Draft:
    """Return a draft whose logits are no distribution from a node on in every other row."""
    assert draft.logits_BNV is not None
    return attrs.evolve(draft, logits_BNV=broken(draft.logits_BNV, fault, place), depth=draft.depth)


def every_other(first: list[list[int]], second: list[list[int]]) -> list[list[int]]:
    """Return the rows of the first for even rows, and of the second for odd ones."""
    return [pair[row % 2] for row, pair in enumerate(zip(first, second, strict=True))]


def ended(draft: Draft, nodes: int) -> Draft:
    """Return the first nodes of a draft."""
    assert draft.logits_BNV is not None
    first = Draft(draft.tokens_BN[:, :nodes], draft.logits_BNV[:, :nodes])
    if draft.parents_BN is None:
        return first
    return attrs.evolve(first, parents_BN=draft.parents_BN[:, :nodes], depth=1)
