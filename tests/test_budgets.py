"""Budgets of single rows: what the loop makes of them, and that neighbours do not notice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from specframe_std.policies.fixed_length import FixedLength
from specframe_testing import fakes, harness, suite_device, zoo

from specframe.contracts.drafts import Budget, Draft
from specframe.devices.kinds import on_device
from specframe.engine.budgets import cut, usable, within_reach
from specframe.errors import ContractError
from specframe.text.sampling import Sampling

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
PROMPTS = harness.random_prompts((6, 1, 9, 4), 61, seed=5)


def rows(*room: int, plain: tuple[int, ...] = ()) -> Any:
    """Return a batch of rows with some tokens to come, of which some ask for no speculation."""
    asked = [SimpleNamespace(request=SimpleNamespace(speculate=row not in plain)) for row in range(len(room))]

    class Rows(SimpleNamespace):
        def __len__(self) -> int:
            return len(room)

    lengths = np.full(len(room), 10)
    lengths_B = torch.from_numpy(lengths)
    return Rows(sequences=asked, lengths=lengths, least=lengths, lengths_B=lengths_B, limits=10 + np.array(room))


def strategies(rule: set[str], alignment: set[str]) -> Any:
    """Return an acceptance rule and an alignment that offer these words."""
    return SimpleNamespace(rule=SimpleNamespace(offers=rule), alignment=SimpleNamespace(offers=alignment))


def numbers(budget: Budget) -> tuple[Any, ...]:
    """Return a budget in plain numbers and lists."""
    return (
        budget.depth,
        budget.nodes,
        *(one if one is None else one.tolist() for one in (budget.depths_B, budget.nodes_B)),
    )


@pytest.mark.wide
@pytest.mark.parametrize(
    ("room", "budget", "expected"),
    [
        ((9, 9, 5), Budget(4), (4, 4, None, None)),
        ((9, 9, 4), Budget(4), (4, 4, None, None)),  # one token of fifteen: no padding worth leaving out
        ((9, 9, 1), Budget(4), (4, 4, [4, 4, 0], None)),
        ((9, 3, 2), Budget(4), (4, 4, [4, 2, 1], None)),
        ((3, 2, 1), Budget(4), (2, 2, [2, 1, 0], None)),
        ((1, 1, 1), Budget(4), (0, 0, None, None)),
        ((9, 1, 2), Budget(4, depths_B=np.array([1, 4, 4])), (4, 4, [1, 0, 1], None)),
        ((9, 2, 2), Budget(3, 8), (3, 8, None, None)),  # which nodes of a tree are too deep is not known on the host
        ((9, 1, 2), Budget(3, 8), (3, 8, [3, 0, 3], None)),
        ((3, 2, 2), Budget(3, 8), (2, 8, None, None)),
    ],
    ids=str,
)
def test_rows_near_their_ends_get_what_they_can_use(
    room: tuple[int, ...], budget: Budget, expected: tuple[Any, ...]
) -> None:
    """A row shortens no other row's draft; it gets less itself where that is padding that forwards leave out."""
    uneven, even = (strategies(set(), words).alignment for words in ({"uneven"}, {"lossless"}))
    assert numbers(within_reach(budget, rows(*room), uneven)) == expected
    assert numbers(within_reach(budget, rows(*room), even))[:2] == expected[:2]
    assert within_reach(budget, rows(*room), even).depths_B is budget.depths_B


def test_a_budget_stays_whole_where_the_output_depends_on_it() -> None:
    """Under a rule whose output depends on the draft lengths cut nothing; rows without speculation have none all the same."""
    invariant, other = strategies({"draft-invariant"}, {"uneven"}), strategies({"samples"}, {"uneven"})
    assert numbers(usable(Budget(4), rows(9, 1, 2), other)) == (4, 4, None, None)
    assert numbers(usable(Budget(4), rows(9, 1, 2), invariant)) == (4, 4, [4, 0, 1], [4, 0, 1])
    assert numbers(usable(Budget(4), rows(9, 1, 2), strategies({"draft-invariant"}, {"tree"}))) == (4, 4, None, None)
    assert numbers(usable(Budget(4), rows(9, 9, plain=(0,)), other)) == (4, 4, [0, 4], [0, 4])
    assert numbers(usable(Budget(3, 8), rows(9, 9, plain=(0, 1)), invariant)) == (0, 0, None, None)


TOKENS_BN = torch.arange(12).view(3, 4)


@pytest.mark.wide(but=["parents of each row"])
@pytest.mark.parametrize("shared", [True, False], ids=["one row of parents", "parents of each row"])
def test_a_tree_is_cut_where_it_gets_too_deep(shared: bool) -> None:
    """Of a row's nodes those before the first that is too deep are real, no more than it may have."""
    parents_BN = torch.tensor([[-1, 0, -1, 1]])
    tree = Draft(TOKENS_BN, parents_BN=parents_BN if shared else parents_BN.repeat(3, 1), depth=3)
    found = cut(tree, Budget(3, 4, np.array([1, 2, 3]), np.array([4, 4, 2])))
    assert found.counts_B is not None
    assert found.counts_B.tolist() == [1, 3, 2]
    assert found.counts is not None
    assert found.counts.tolist() == [4, 4, 2]


class Own(FixedLength):
    """A policy by which each row drafts a number of tokens of its own, which changes with its length."""

    offers = frozenset()

    def budget(self, batch: Any) -> Budget:
        """Return the budgets of the rows."""
        own = [one.request.index + length for one, length in zip(batch.sequences, batch.lengths, strict=True)]
        return Budget(4, depths_B=np.array(own) % 5)


@pytest.mark.wide(but=["rejection"])
@pytest.mark.parametrize("rule", ["rejection", "block", "gumbel", "typical"])
def test_a_rows_draws_depend_on_its_own_budget(rule: str) -> None:
    """Under rules that look at drafts a row draws with rows of other budgets what it draws alone."""
    target = zoo.build("qwen3")
    pipes = [
        harness.pipeline(
            target, zoo.good_draft(target), accept=rule, draft_length=Own(4), batch_size=rows, seed=2, align=align
        )
        for rows, align in ((1, "ragged"), (4, "ragged"), (4, "eqspec"))
    ]
    prompts = harness.random_prompts((5, 1, 9, 3), zoo.VOCABULARY)
    found = [
        [one.token_ids for one in pipe.generate(prompts, 16, sampling=Sampling(temperature=1.0))] for pipe in pipes
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.wide
def test_rows_that_gain_alike_draft_alike() -> None:
    """Under an alignment whose rows all gain what the least row does, chains of a policy's unequal rows have their mean length."""
    asked, feeds = harness.requests(PROMPTS, 40), harness.Feeds()
    drafter, policy = fakes.always_right(harness.truth(TARGET, asked)), fakes.Uneven(Budget(4))
    harness.check(
        harness.pipeline(
            TARGET, drafter, align="rollback", batch_size=4, draft_length=policy, check=True, observers=[feeds]
        ),
        asked,
    )
    told = zip(policy.said, feeds.decoding, strict=True)
    uneven = [(said, one.report) for said, one in told if said.depths_B is not None and (one.report.lengths < 35).all()]
    assert len(uneven) > 3
    for said, report in uneven:
        assert report.drafted.tolist() == [round(float(said.depths_B.mean()))] * len(report.drafted)


ROWS_B = np.array([1, 0, 2, 4])
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a list": ({"depths_B": [1, 0, 2, 4]}, r"depths_B as an array of numpy, got \[1, 0, 2, 4\]"),
    "a tensor": ({"nodes_B": torch.tensor(ROWS_B)}, r"nodes_B as an array of numpy, got a tensor of shape \(4,\)"),
    "halves": ({"depths_B": ROWS_B / 2}, r"depths_B of whole numbers, got float64"),
    "a row less": ({"depths_B": ROWS_B[:3]}, r"depths_B of shape \(B,\) = \(4,\), got \(3,\)"),
    "two columns": ({"nodes_B": np.zeros((4, 2), dtype=int)}, r"nodes_B of shape \(B,\) = \(4,\), got \(4, 2\)"),
    "less than nothing": ({"depths_B": ROWS_B - 1}, r"depths_B from 0 to budget.depth = 4, got -1"),
    "more than the depth": ({"depths_B": ROWS_B + 1}, r"depths_B from 0 to budget.depth = 4, got 5"),
    "more than the nodes": ({"nodes_B": ROWS_B + 3}, r"nodes_B from 0 to budget.nodes = 4, got 5"),
}


@pytest.mark.wide(but=["more than the depth"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_budgets_are_told(fault: str) -> None:
    """What a policy gives for rows that is no whole number of each, in range, ends in one sentence that names the policy."""
    given, told = FAULTS[fault]

    class Faulty(Own):
        def budget(self, batch: Any) -> Budget:
            return Budget(4, **given)

    pipe = harness.pipeline(TARGET, DRAFT, batch_size=4, draft_length=Faulty(4))
    with pytest.raises(ContractError, match=rf"^draft-length policy .*Faulty: budget\(\) must return {told}$"):
        harness.decode(pipe, harness.requests(PROMPTS, 8))


@pytest.mark.wide(but=["cpu"])
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_counts_of_device_and_host_that_differ_are_told(device: str) -> None:
    """A drafter that says of nodes that are real that they are not would have them accepted without scores."""

    class Faulty(fakes.ScriptedDrafter):
        def propose(self, batch: Any, budget: Budget) -> Draft:
            draft = super().propose(batch, budget)
            if not draft.nodes:
                return draft
            counts = np.array([4, 2, 1, 4])
            return attrs.evolve(draft, counts=counts, counts_B=on_device([4, 2, 3, 0], batch.lengths_B.device))

    asked = harness.requests(PROMPTS, 8)
    with suite_device.running_on(device):
        pipe = harness.pipeline(TARGET, Faulty(harness.truth(TARGET, asked)), batch_size=4, draft_length=4)
        with pytest.raises(
            ContractError, match=r"Faulty: propose\(\) must return counts_B up to counts, 1 in row 2, got 3$"
        ):
            harness.decode(pipe, asked)
