"""Numbers of drafts and acceptance results that no contract allows: each is one sentence that names the strategy that returned
them.

Drafts are trees with padding, whose acceptance results the loop cuts. On a CPU the numbers are looked at at once, on other devices
in the round's transfer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from specframe_std.acceptance.greedy import Greedy
from specframe_std.alignments.ragged import Ragged
from specframe_testing import fakes, harness, suite_device

from specframe.contracts.drafts import Acceptance, Draft, Transfer
from specframe.engine.guards.numbers import draft_fault
from specframe.errors import ContractError

V = 61
TARGET = fakes.fake_target(V)
ASKED = harness.requests(harness.random_prompts([5, 9, 2], V), 12)
TRUTH = harness.truth(TARGET, ASKED)

Change = Callable[[Any], Any]


class Drafter(fakes.ScriptedTree):
    """Drafts the scripted tree with as much padding as there can be: two rows mean all nodes, the last one means one."""

    def __init__(self, change: Change = lambda draft: draft) -> None:
        super().__init__(TRUTH)
        self.change = change

    def propose(self, *given: Any) -> Draft:
        draft = super().propose(*given)
        if not draft.nodes:
            return draft
        counts_B = torch.full_like(draft.tokens_BN[:, 0], draft.nodes)
        counts_B[-1] = 1
        return self.change(attrs.evolve(draft, counts_B=counts_B))


class Rule(Greedy):
    """Accepts greedily."""

    def __init__(self, change: Change = lambda acceptance: acceptance) -> None:
        super().__init__()
        self.change = change

    def accept(self, batch: Any, draft: Draft, scores: Any) -> Acceptance:
        acceptance = super().accept(batch, draft, scores)
        return self.change(acceptance) if draft.nodes else acceptance


class Alignment(Ragged):
    """Commits what was accepted."""

    def __init__(self, change: Change = lambda acceptance: acceptance) -> None:
        self.change = change

    def commit(self, batch: Any, draft: Draft, transfer: Transfer) -> Transfer:
        transfer = super().commit(batch, draft, transfer)
        return transfer.of(self.change(transfer.acceptance)) if draft.nodes else transfer


def first(name: str, value: int, row: int = 0) -> Change:
    """Return what sets the first number of one row of a draft's or acceptance result's tensor."""

    def change(given: Any) -> Any:
        tensor = getattr(given, name).clone()
        tensor[row : row + 1].view(1, -1)[:, :1] = value
        return attrs.evolve(given, **{name: tensor})

    return change


def path(*nodes: int) -> Change:
    """Return what accepts such a path in the first row."""

    def change(acceptance: Acceptance) -> Acceptance:
        assert acceptance.path_BT is not None
        path_BT, accepted_B = acceptance.path_BT.clone(), acceptance.accepted_B.clone()
        for place, node in enumerate(nodes):
            path_BT[0, place : place + 1] = node
        accepted_B[:1] = len(nodes)
        return attrs.evolve(acceptance, path_BT=path_BT, accepted_B=accepted_B)

    return change


DRAFTS: dict[str, tuple[Change, str]] = {
    "a depth below the tree's": (
        lambda draft: attrs.evolve(draft, depth=draft.depth - 1),
        r"a depth of at least 3, the nodes of the longest path in parents_BN, got 2",
    ),
    "a parent that comes later": (first("parents_BN", 2), r"parents_BN that are -1 or an earlier node, got \[2, -1"),
    "a parent before the row's last token": (
        first("parents_BN", -2),
        r"parents_BN that are -1 or an earlier node, got \[-2",
    ),
    "a count below none": (first("counts_B", -1), r"counts_B from 0 to N = 6, got -1"),
    "a count above the nodes": (first("counts_B", 7), r"counts_B from 0 to N = 6, got 7"),
    "the vocabulary's size": (first("tokens_BN", V), r"token ids from 0 to 60 in tokens_BN, got 61"),
    "a negative id": (first("tokens_BN", -1), r"token ids from 0 to 60 in tokens_BN, got -1"),
}
VERDICTS: dict[str, tuple[Change, str]] = {
    "more accepted than drafted": (first("accepted_B", 100), r"accepted_B from 0 to K = 3, got 100"),
    "one less than none accepted": (first("accepted_B", -1), r"accepted_B from 0 to K = 3, got -1"),
    "two less than none accepted": (first("accepted_B", -2), r"accepted_B from 0 to K = 3, got -2"),
    "the vocabulary's size": (first("tokens_BT", V), r"token ids from 0 to 60 in tokens_BT, got 61"),
    "a negative id": (first("tokens_BT", -1), r"token ids from 0 to 60 in tokens_BT, got -1"),
    "a node before the first": (path(-1), r"nodes from 0 to 5 in path_BT, got -1"),
    "a node after the last": (path(6), r"nodes from 0 to 5 in path_BT, got 6"),
    "no path": (lambda acceptance: attrs.evolve(acceptance, path_BT=None), r"path_BT as a tensor, got None"),
    "a path of siblings": (path(0, 1), r"a path_BT in which each node is a child of the node before it, got \[0, 1\]"),
    "a path that begins below": (path(3), r"a path_BT in which each node is a child of the node before it, got \[3\]"),
}
RULES: dict[str, tuple[Change, str]] = {
    **VERDICTS,
    "another token than the draft's": (
        lambda acceptance: attrs.evolve(acceptance, tokens_BT=(acceptance.tokens_BT + 1) % V),
        r"the draft's token \d+ at an accepted place in tokens_BT, got \d+",
    ),
}


LATE = {"a depth below the tree's", "more accepted than drafted", "a node after the last"}
"""The faults that are reported on another device, too: on all of them the same check sees the numbers of the transfer."""


def decode(device: str, **strategies: Any) -> None:
    """Decode exactly with a tree that has padding."""
    options = {"drafter": Drafter(), "accept": Rule(), "align": Alignment(), **strategies}
    with suite_device.running_on(device):
        harness.check(harness.pipeline(TARGET, batch_size=3, **options), ASKED)


STRATEGIES: dict[str, tuple[type, str, dict[str, tuple[Change, str]]]] = {
    "drafter": (Drafter, r"drafter \S*Drafter.*: propose", DRAFTS),
    "accept": (Rule, r"acceptance rule \S*Rule.*: accept", RULES),
    "align": (Alignment, r"alignment \S*Alignment.*: commit", VERDICTS),
}
"""Of each option the strategy at fault, how it is named, and what may be wrong with what it returns."""


def told() -> list[tuple[str, str, str]]:
    """Return the options with their faults and the devices that these are reported on."""
    cases = [(option, case) for option, (_, _, faults) in STRATEGIES.items() for case in faults]
    return [(*one, device) for one in cases for device in ("cpu", "sim") if device == "cpu" or one[1] in LATE]


@pytest.mark.wide(
    but=[
        "accept-a path that begins below-cpu",
        "accept-no path-cpu",
        "accept-another token than the draft's-cpu",
        "align-more accepted than drafted-sim",
    ]
)
@pytest.mark.parametrize(("option", "case", "device"), told())
def test_a_strategy_is_named(option: str, case: str, device: str) -> None:
    """What a strategy returned is reported as its own, before the loop cuts padding away or another strategy replaces it."""
    strategy, name, faults = STRATEGIES[option]
    change, said = faults[case]
    with pytest.raises(ContractError, match=rf"^{name}\(\) must return {said}"):
        decode(device, **{option: strategy(change)})


@pytest.mark.wide
def test_a_chain_is_as_deep_as_it_has_tokens() -> None:
    """A depth that leaves out tokens of a chain is refused."""

    class Short(fakes.ScriptedDrafter):
        def propose(self, *given: Any) -> Draft:
            draft = super().propose(*given)
            return attrs.evolve(draft, depth=max(0, draft.depth - 1))

    with pytest.raises(
        ContractError, match=r"^drafter .*: propose\(\) must return a depth of N = 4 for a chain, got 3"
    ):
        harness.decode(harness.pipeline(TARGET, Short(TRUTH), draft_length=4), ASKED)


def test_filler_is_not_measured() -> None:
    """A path of padding may be longer than the draft's depth; a path of real nodes may not."""
    tokens, parents = np.zeros((1, 3), dtype=np.int64), np.array([[-1, 0, 1]])
    draft = Draft(torch.zeros(1, 3, dtype=torch.long), parents_BN=torch.tensor(parents), depth=2)
    assert draft_fault(draft, tokens, parents, np.array([2]), V) is None
    assert draft_fault(draft, tokens, parents, np.array([3]), V) is not None
