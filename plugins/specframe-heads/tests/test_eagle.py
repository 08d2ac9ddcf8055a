"""EAGLE heads: what is theirs alone among the families of heads, of which test_every_family.py is the table.

Heads have random weights, so their own drafts are hardly ever accepted. :class:`Helped` replaces some draft tokens by right ones:
rows then accept unequal numbers of tokens, and what the head is fed after that shows in the drafts that follow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from specframe_heads.eagle.eagle_drafter import Eagle
from specframe_std.trees import growth
from specframe_testing import harness, zoo
from specframe_testing.heads import checkpoints

from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.errors import CompositionError, ModelError, OptionError

PROMPTS = harness.random_prompts([5, 1, 12, 3, 8], zoo.VOCABULARY)


class Helped(Eagle):
    """An EAGLE head, two thirds of whose chains' tokens are replaced by the target's own."""

    truth: list[list[int]]

    def choose(self, batch: Any, offset: int, drafted_BK: Any, logits_B1V: Any) -> Any:
        """Return the head's choice, or the right token at two of three places."""
        token_B1, logits = super().choose(batch, offset, drafted_BK, logits_B1V)
        for row, sequence in enumerate(batch.sequences):
            request = sequence.request
            place = int(batch.lengths[row]) + offset - len(request.prompt_ids)
            known = self.truth[request.index]
            if (7 * request.index + 5 * place) % 3 and place < len(known):
                token_B1[row] = known[place]
        return token_B1, logits


class Drafts(Observer):
    """Keeps every draft, by the request and the row's length before it."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int, int], list[int]] = {}

    def round(self, report: RoundReport) -> None:
        """Keep a round's drafts."""
        for row, sequence in enumerate(report.sequences):
            if report.draft.nodes:
                key = (*sequence.request.key, int(report.lengths[row]))
                self.seen[key] = report.draft.tokens_BN[row].tolist()


def helped(folder: Path, target: Any, asked: Sequence[Request], **options: Any) -> Helped:
    """Return a helped head for requests to a target."""
    drafter = Helped(str(folder), **options)
    drafter.truth = harness.truth(target, asked)
    return drafter


def drafts(
    target: Any, folder: Path, asked: Sequence[Request], **options: Any
) -> dict[tuple[int, int, int], list[int]]:
    """Decode, assert that it is exact, and return all drafts of three tokens."""
    seen, drafter = Drafts(), helped(folder, target, asked)
    pipe = harness.pipeline(target, drafter, **{"batch_size": 3, "draft_length": 3, "observers": [seen], **options})
    harness.check(pipe, asked)
    return seen.seen


def assert_same(some: dict, others: dict, least: int) -> None:
    """Assert that two runs drafted the same where a row was equally long."""
    shared = some.keys() & others.keys()
    assert len(shared) >= least
    for key in shared:
        depth = min(len(some[key]), len(others[key]))  # drafts are cut near the end of a batch
        assert some[key][:depth] == others[key][:depth], key


def test_a_given_top_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level of a dynamic tree runs as many nodes as asked for, far more than the tree has: the cache has slots for them."""
    target, tops, grow = zoo.build("qwen3"), list[tuple[int, int]](), growth.dynamic
    monkeypatch.setattr(
        growth, "dynamic", lambda budget, top, *rest: tops.append((budget.depth, top)) or grow(budget, top, *rest)
    )
    folder = checkpoints.eagle3(tmp_path, target)
    asked = harness.requests(harness.random_prompts([3, 1, 7], zoo.VOCABULARY), 9)
    drafter = f"eagle,checkpoint={folder},tree=dynamic,nodes=6,top=20"
    harness.check(harness.pipeline(target, drafter, batch_size=3, draft_length=4), asked)
    assert (4, 20) in tops
    assert {top for _, top in tops} == {20}


@pytest.mark.wide
def test_rounds_without_a_draft_are_caught_up(tmp_path: Path) -> None:
    """Features of rounds in which nothing was drafted wait, many of them, and are consumed by the next draft."""
    from specframe.contracts.drafts import Budget

    class Rarely:
        needs = offers = frozenset()
        maximum = Budget(3)

        def start(self, run: Any) -> None:
            """Nothing to prepare."""

        def budget(self, batch: Any) -> Budget:
            return Budget(3) if int(batch.lengths.max()) % self.every == 0 else Budget(0)

        def observe(self, report: Any) -> None:
            pass

    target = zoo.build("qwen3")
    folder, asked = checkpoints.eagle3(tmp_path, target), harness.requests(PROMPTS[:1], 43)
    alone = drafts(target, folder, asked, batch_size=1)
    policy = Rarely()
    policy.every = 45
    assert_same(drafts(target, folder, asked, draft_length=policy), alone, 1)


@pytest.mark.wide
def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A head for another target, a tree for a rule that has none, and a wrong option are one sentence each."""
    head = checkpoints.eagle3(tmp_path, zoo.build("qwen3"))
    asked = harness.requests(PROMPTS[:1], 4)
    with pytest.raises(
        ModelError, match=r"is a head for another target: expected a target with hidden states of size 32, got 36"
    ):
        harness.decode(harness.pipeline(zoo.build("llama"), str(head), draft_length=2), asked)
    said = f"drafter '{head},tree=dynamic' needs 'tree' to be offered, and alignment 'masking' does not offer it, as "
    with pytest.raises(CompositionError, match=f"^{re.escape(said)}"):
        harness.pipeline(zoo.build("qwen3"), f"{head},tree=dynamic", align="masking", draft_length=2)
    with pytest.raises(OptionError, match="shift: expected a whole number from -8 to 8"):
        harness.pipeline(zoo.build("qwen3"), f"{head},shift=9", draft_length=2)
