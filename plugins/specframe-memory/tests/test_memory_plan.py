"""A bound of memory: which fallback configuration a run takes, that it never takes more, and that its tokens stay the same."""

from __future__ import annotations

import random
import types
import warnings
from typing import Any

import attrs
import numpy as np
import pytest
from planned import CASES, Case, model
from specframe_memory.allocations import Allocations
from specframe_memory.capped_drafts import Capped
from specframe_memory.footprint import Footprint, Workload
from specframe_memory.memory_bound import plans_of
from specframe_memory.memory_plan import Configuration, Ladder, most

from specframe import Pipeline, Sampling
from specframe.contracts.drafts import Budget
from specframe.errors import ModelError, OptionError

KVS = ("slab", "pool", "paged", "paged,block=4,share=on", "paged,block=7")
DRAFTERS = ("draft", None, "prompt-lookup", "model,tree=static,nodes=6", "model,tree=dynamic,nodes=8,top=2")


def drawn(seed: int) -> tuple[Case, list[list[int]], dict[str, Any], int]:
    """Return a random run: a case, prompts of any length up to that of its load, how tokens are chosen, and new tokens."""
    choose = random.Random(seed)
    target = choose.choice(("qwen3", "llama", "gemma3", "qwen3.5"))
    drafter = choose.choice(DRAFTERS)
    if target == "qwen3.5" and drafter is not None and "tree" in drafter:
        drafter = "draft"
    align = choose.choice(("ragged", "ragged", "eqspec", "exspec")) if drafter in ("draft", None) else "ragged"
    options: dict[str, Any] = {"align": align}
    if align == "ragged":
        options["kv"] = choose.choice(KVS)
    elif target == "qwen3.5":
        options["align"] = "ragged"
    if drafter is None or "tree" not in drafter:
        options["draft_length"] = choose.choice((1, 2, 4, 7, "auto"))
    rows, longest = choose.randint(1, 5), choose.randint(2, 90)
    new = choose.randint(1, 14)
    count = choose.randint(rows, 2 * rows + 2)
    prompts = [[choose.randrange(1, 1000) for _ in range(choose.randint(1, longest))] for _ in range(count)]
    asked: dict[str, Any] = {}
    if choose.random() < 0.4:
        asked["sampling"] = Sampling(temperature=0.8, top_p=choose.choice((1.0, 0.9)), samples=choose.choice((1, 1, 3)))
    case = Case(target, drafter, Workload(rows, max(map(len, prompts)), max(map(len, prompts)) + new), options)
    return case, prompts, asked, new


def decoded(
    case: Case,
    prompts: list[list[int]],
    new: int,
    asked: dict[str, Any],
    ladders: dict[bool, Ladder] | None = None,
    **options: Any,
) -> list[list[int]]:
    """Return the tokens of a run; any warning, as of memory that ran out, is an error."""
    pipe = case.pipeline(**options)
    if ladders is not None:
        plans_of(pipe.parts).ladders = ladders
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [one.token_ids for one in pipe.generate(prompts, new, **asked)]


class Sizes:
    """A stand-in for memory profiling: bytes for a run, for each row, and for each node of a row."""

    def __init__(self, run: int, row: int, node: int = 0) -> None:
        self._run, self._row, self._node = run, row, node
        self.asked: list[tuple[int, int]] = []

    def footprint(self, load: Workload, budget: Budget, like: Any = ()) -> Footprint:
        """Return the bytes."""
        self.asked.append((load.rows, budget.nodes))
        total = self._run + load.rows * (self._row + budget.nodes * self._node)
        return Footprint(total, {"all": total}, 0)


FIVE = Budget(5)


def ladder(maximum: Budget = FIVE) -> tuple[Ladder, Sizes]:
    """Return fallback configurations of 1,000 bytes, 100 for each row with a drafter and 60 without, and 10 for a row's node."""
    drafted: Any = Sizes(1000, 100, 10)
    plain: Any = Sizes(900, 60)
    return Ladder([Configuration(drafted), Configuration(plain, drafts=False)], maximum), drafted


@pytest.mark.wide
@pytest.mark.parametrize(
    ("nbytes", "rows", "nodes"),
    [
        (10_000, 8, 5),
        (1000 + 8 * 150, 8, 5),
        (1000 + 8 * 150 - 1, 8, 4),
        (1000 + 8 * 110, 8, 1),
        (1000 + 8 * 110 - 1, 7, 2),
        (1000 + 3 * 150, 4, 1),
        (1000 + 110, 1, 1),
        (1000 + 110 - 1, 3, 0),
        (900 + 60, 1, 0),
    ],
)
def test_a_run_goes_down_the_ladder(nbytes: int, rows: int, nodes: int) -> None:
    """It drafts less, then has fewer rows and drafts what these have room for, then drafts nothing."""
    chosen = ladder()[0].choose(nbytes, Workload(8, 10, 20))
    assert (chosen.rows, chosen.budget.nodes, chosen.form.drafts) == (rows, nodes, nodes > 0)
    assert chosen.footprint.total <= nbytes


@pytest.mark.wide
def test_less_than_the_least_is_refused_with_the_numbers() -> None:
    """One row without a drafter is the least: what it takes is named beside what there is."""
    told = r"^memory: expected at least 960 bytes for one sequence of 20 tokens, .* got 959 bytes$"
    with pytest.raises(ModelError, match=told):
        ladder()[0].choose(959, Workload(8, 10, 20))


@pytest.mark.wide
def test_a_step_is_looked_at_once() -> None:
    """What is known is not decoded again, and few steps are looked at where bytes grow evenly."""
    made, sizes = ladder(Budget(1))
    for _ in range(2):
        assert made.choose(1000 + 700 * 110, Workload(1000, 10, 20)).rows == 700
    assert len(sizes.asked) == len(set(sizes.asked)) <= 5


@pytest.mark.wide(but=["21"])
@pytest.mark.parametrize("bound", range(0, 60, 7))
def test_the_most_is_found_on_any_rising_line(bound: int) -> None:
    """The number is that of a search one by one, whatever the steps."""
    steps = [0, 1, 1, 3, 20, 21, 40, 41, 41]
    expected = max((one for one in range(1, 9) if steps[one] <= bound), default=0)
    assert most(steps.__getitem__, 8, bound) == expected


@pytest.mark.wide
def test_a_policy_is_capped() -> None:
    """Its budget has no more depth and nodes than memory suffices for, in no row, and it receives what it learns from."""
    told: list[Any] = []
    policy: Any = types.SimpleNamespace(
        needs=frozenset(), offers=frozenset(), maximum=Budget(8), start=told.append, observe=told.append,
        budget=lambda batch: Budget(8, 8, np.array([8, 1]), np.array([8, 1])),
    )  # fmt: skip
    made: Any = Capped(policy, Budget(3))
    found = made.budget(None)
    assert (found.depth, found.nodes, found.depths_B.tolist(), found.nodes_B.tolist()) == (3, 3, [3, 1], [3, 1])
    made.start("run")
    made.observe("report")
    assert (made.maximum, told) == (Budget(3), ["run", "report"])


@pytest.mark.wide
@pytest.mark.parametrize("memory", ["22 parsecs", "-1GB", 0, True])
def test_nonsense_is_refused(memory: Any) -> None:
    """A bound that is no amount of memory is one sentence."""
    with pytest.raises(OptionError, match=r"^memory: expected bytes as in 2GB, 512MB or 1\.5GiB, got"):
        Pipeline(model("llama"), None, memory=memory)


def test_a_bound_is_kept_by_drafting_less_and_by_no_drafter() -> None:
    """With less and less memory a run decodes the same tokens with shorter drafts, then with one row and no drafter."""
    case = attrs.evolve(CASES["slab"], load=Workload(2, 24, 29), options={"draft_length": 2, "kv": "slab"})
    prompts, free = case.prompts[:2], case.pipeline(memory=10**9)
    expected = [one.token_ids for one in free.generate(prompts, 5)]
    (full,) = [step for step in plans_of(free.parts).ladders[True]._known.values() if step.budget.nodes]
    least = case.least(prompts, 5, plans_of(free.parts).ladders)
    seen = [(free.report.draft_forwards, free.report.target_forwards)]
    for nbytes in (full.footprint.total - 1, least):
        counter, pipe = Allocations(limit=nbytes), case.pipeline(memory=nbytes)
        plans_of(pipe.parts).ladders = plans_of(free.parts).ladders
        case.hold(counter)
        with counter, warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [one.token_ids for one in pipe.generate(prompts, 5)] == expected
        seen.append((pipe.report.draft_forwards, pipe.report.target_forwards))
    (most_drafts, few), (drafts, more), (none, all_alone) = seen
    assert most_drafts > drafts > none == 0
    assert few <= more < all_alone


@pytest.mark.wide
def test_prompts_of_many_lengths_take_no_more_than_the_longest() -> None:
    """What is kept of a prompt's forward, as its mask, is no more where the prompts before had other lengths."""
    prompts = [[7] * length for length in (24, 9, 98, 30)]
    case = attrs.evolve(CASES["slab"], load=Workload(1, 98, 102), options={"draft_length": 2, "kv": "slab"})
    told, counter = case.planned().total, Allocations()
    case.hold(counter)
    with counter:
        decoded(case, prompts, 4, {}, memory=told)
    assert counter.peak.total <= told


@pytest.mark.wide
@pytest.mark.parametrize("seed", [4, 15])
def test_memory_never_ends_under_a_bound_that_is_kept(seed: int) -> None:
    """A run within its bound asks for no byte more, and greedy tokens are those of the run without a bound."""
    case, prompts, asked, new = drawn(seed)
    ladders = dict[bool, Ladder]()
    low = case.least(prompts, new, ladders, **asked)
    nbytes = random.Random(seed + 1).randint(low, 2 * low)
    counter = Allocations(limit=nbytes)
    case.hold(counter)
    with counter:
        found = decoded(case, prompts, new, asked, ladders, memory=nbytes)
    assert counter.peak.total <= nbytes
    if not asked:
        assert found == decoded(case, prompts, new, asked)
