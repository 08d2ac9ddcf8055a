"""Draft-length policies over trees where a call of a round fails, a row is aborted or the engine ends: no request is lost, and no
row's budget outlives the batch that it was made for."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from planting import assert_once, collected, opened, plant, raising, stepped, turns, wanted
from policy_worlds import Rows, round_report
from specframe_std.policies.goodput import Goodput
from specframe_testing import fakes, harness
from specframe_tiny import FOLDER

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.pipeline import Pipeline
from specframe.plugins.compose import FIELDS

pytestmark = pytest.mark.filterwarnings("ignore::specframe.errors.SpecframeWarning")

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
POLICIES = ("explicit,least=0.3", "goodput")
TREES = (
    "model,tree=dynamic,nodes=12",
    "model,tree=static,nodes=12",
    "model,branch=3/2/1",
    "prompt-lookup,ngram=1,tree=dynamic,nodes=24",
)
HEADS = tuple(
    f"{head},checkpoint={FOLDER / 'heads' / folder}{shape}"
    for head, folder, shape in (("eagle", "eagle3", ",tree=dynamic,nodes=8"), ("medusa", "medusa", ""))
)
PIPES = [*itertools.product(TREES, POLICIES)]
OF_HEADS = [pytest.param(*one, marks=pytest.mark.slow) for one in itertools.product(HEADS, POLICIES)]
POINTS = (
    ("drafter", "propose"),
    ("drafter", "observe"),
    ("verifier", "score"),
    ("acceptance rule", "accept"),
    ("draft-length policy", "budget"),
    ("draft-length policy", "observe"),
)
"""Members that fail, each with its role."""


class Seconds(Observer):
    """A clock by which forwards take what tokens take, so that what ``goodput`` measures is the same on every machine."""

    def __init__(self) -> None:
        self.now, self.trees = 0.0, False

    def fed(self, model: str, tokens: int, computed: int) -> None:
        """Take the time of a forward."""
        self.now += 0.1 + 0.002 * computed if model == "target" else 0.01

    def round(self, report: RoundReport) -> None:
        """Note whether there are trees."""
        self.trees |= report.draft.nodes > report.depth > 0


@functools.cache
def seasoned(drafter: str, policy: str) -> tuple[Pipeline, Any, list[Any]]:
    """Return a pipeline whose policy has seen some rounds, its strategies, and what it is asked for."""
    seconds, fake = Seconds(), drafter in TREES
    target: Any = TARGET if fake else Pipeline("tiny", None, dtype="float32", device="cpu").target_model
    vocabulary, new = target.config.vocab_size, [24, 19, 26, 5, 21] if fake else [9, 6, 8, 3, 7]
    lengths = (3, 9, 5, 7, 4) if "lookup" not in drafter else (90, 120, 110, 80, 100)  # texts in which words come again
    asked = harness.requests(harness.random_prompts(lengths, vocabulary), new)
    given = {"drafter": drafter, "draft_length": policy, "batch_size": 4, "observers": [seconds]}
    pipe = harness.pipeline(target, None, **given)
    pipe.parts.draft = DRAFT if drafter.startswith("model") else None
    made: Any = pipe.composition.policy
    made.clock = lambda: seconds.now
    for _ in range(3):
        harness.check(pipe, asked)
    assert seconds.trees
    return pipe, pipe.composition, asked


@pytest.mark.wide
@pytest.mark.parametrize(("drafter", "policy"), [*PIPES, *OF_HEADS])
@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_every_call_of_a_round_may_fail(point: tuple[str, str], drafter: str, policy: str) -> None:
    """A lack of memory changes no token; an error names its strategy's role, and an engine that goes on loses nothing."""
    (role, member), (pipe, usual, asked) = point, seasoned(drafter, policy)
    planted = functools.partial(plant, pipe, usual, (FIELDS[role], "", member))
    counted = planted(0, raising("error"))
    harness.check(pipe, asked)
    target, tokens = pipe.target_model, wanted(pipe.target_model, asked)
    for at in turns(counted.calls):
        planted(at, raising("memory"))
        results, told = collected(pipe.decode(asked))
        assert told == "", at
        assert_once(target, asked, results, complete=True)
        acting = planted(at, raising("error"))
        results, told = collected(pipe.decode(asked))
        assert_once(target, asked, results, complete=False)
        assert acting.calls < at or told.startswith(f"{role} "), (at, told)
        acting = planted(at, raising("error"))
        assert stepped(opened(pipe, asked)) == (tokens, int(acting.calls >= at)), at


def test_what_a_round_that_counted_for_nothing_has_seen_is_forgotten() -> None:
    """A round that failed after its drafter was looked at tells ``goodput`` nothing of the next one, which has other rows."""
    policy, now = Goodput(4), [0.0]
    policy.clock = lambda: now[0]

    def decoded(rows: Rows, stood: int, step: float) -> None:
        budget = policy.budget(rows)
        now[0] += 1 + step * budget.depth
        policy.observe(round_report(np.full(len(rows), min(stood, budget.depth)), budget.depth, rows))

    four, two = Rows(4), Rows(2)
    for _ in range(40):
        decoded(four, 4, 0.1)
    for _ in range(40):
        decoded(two, 0, 2.0)
    stopping = policy.budget(four).stopping
    assert stopping is not None
    stopping.goes_on(four, 0, torch.randn(4, 10))  # type: ignore[arg-type]
    assert policy.budget(two).depth == 0
    before = len(policy.calibration._waiting)
    policy.observe(round_report(np.zeros(2, dtype=int), 0, two))
    assert len(policy.calibration._waiting) == before
