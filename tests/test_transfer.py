"""The transfer of a round: one copy brings all numbers to the host, whatever the device."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

from specframe.contracts.drafts import Acceptance, Draft, Transfer
from specframe.devices import kinds
from specframe.models.loading import pick_device

TREE = torch.tensor([[-1, 0, -1]])


def transfer(device: str, check: Any = None) -> Transfer:
    """Return the transfer of two rows: a tree of three nodes, padding in the second row, one place undecided."""

    def on(values: Any) -> torch.Tensor:
        return torch.tensor(values, device=device)

    draft = Draft(on([[5, 6, 7], [8, 9, 0]]), parents_BN=TREE.to(device), counts_B=on([3, 2]), depth=2)
    by_rule = Acceptance(on([1, 2]), on([[7, 4, 0], [8, 9, 3]]), on([[2, 0], [0, 1]]))
    undecided_BT = on([[False, True, False], [False] * 3])
    return Transfer(draft, by_rule.within(draft), by_rule, undecided_BT, check=check)


def test_everything_comes_in_one_copy() -> None:
    """The host waits once, however often and by whom the numbers are asked for, and what guards check comes along."""
    device = pick_device("sim")
    seen: list[Any] = []
    one = transfer("sim", lambda *given: seen.append(given))
    before = kinds.of(device).traffic()
    assert one.host is one.host
    after = kinds.of(device).traffic()
    assert before is not None
    assert after is not None
    assert after.waits - before.waits == 1
    ((checked, numbers),) = seen
    assert checked is one
    assert numbers.by_rule.tolist() == [1, 2]
    assert numbers.rule_path.tolist() == [[2, 0], [0, 1]]
    assert numbers.drafted.tolist() == [[5, 6, 7], [8, 9, 0]]
    assert numbers.parents.tolist() == [[-1, 0, -1]] * 2


def test_filler_does_not_stand() -> None:
    """Of a chain as many tokens are accepted as are real, of a path the nodes before its first padding."""
    tokens_BT = torch.tensor([[5, 6, 7, 8]])
    chain = Draft(tokens_BT[:, :3], counts_B=torch.tensor([1]))
    assert Acceptance(torch.tensor([3]), tokens_BT).within(chain).accepted_B.tolist() == [1]
    tree = Draft(tokens_BT[:, :3], parents_BN=TREE, counts_B=torch.tensor([2]), depth=2)
    path_BT = torch.tensor([[2, 0]])
    assert Acceptance(torch.tensor([1]), tokens_BT[:, :3], path_BT).within(tree).accepted_B.tolist() == [0]


def test_a_round_goes_when_nobody_has_it() -> None:
    """What it reports to its cache does not hold it: a draft's logits would stay until Python collects garbage."""
    round, collects = transfer("cpu"), gc.isenabled()
    kept, gone = round.kept, weakref.ref(round)
    assert kept.on_host is not None
    assert kept.on_host().tolist() == [1, 2]
    gc.disable()
    try:
        del round, kept
        assert gone() is None
    finally:
        if collects:
            gc.enable()


def test_a_node_follows_its_parent_in_chains_and_trees() -> None:
    """Each token of a chain follows the one before; a tree that all rows have is that of each."""
    tokens_BN = torch.zeros(2, 3, dtype=torch.long)
    assert Draft(tokens_BN).above_BN.tolist() == [[-1, 0, 1]] * 2
    assert Draft(tokens_BN, parents_BN=torch.tensor([[-1, -1, 0]]), depth=2).above_BN.tolist() == [[-1, -1, 0]] * 2
