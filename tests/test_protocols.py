"""A protocol is what is called: strategies work on stand-ins that have the members declared, and no others."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from specframe_testing import fakes, harness, zoo
from specframe_testing.heads import block_heads, mtp, stepwise
from specframe_testing.heads import checkpoints as heads
from specframe_testing.strict import OF_THE_CORE, UndeclaredError, declared, strict, strictly

from specframe import contracts
from specframe.contracts import cache, roles
from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.engine import Executor
from specframe.contracts.model import Model
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch
from specframe.contracts.states import StateStore
from specframe.engine.pool import Pool
from specframe.errors import ContractError
from specframe.pipeline import Pipeline

TARGET = zoo.build("qwen3")
DRAFT = zoo.good_draft(TARGET)
ASKED = harness.requests(harness.random_prompts([5, 1, 14, 9], zoo.VOCABULARY), [6, 9, 3, 5], {zoo.EOS})
USED: set[tuple[str, str]] = set()
"""The members that the tests of this file have used."""


def check(pipe: Pipeline, asked: list[Request] = ASKED) -> None:
    """Decode with stand-ins, and compare all tokens."""
    pipe.parts.composition = strictly(pipe.composition, USED)
    pipe.parts.runner = strict(pipe.parts.runner, Model, USED)
    pipe.executor = strict(pipe.executor, Executor, USED)
    harness.check(pipe, asked)


STRATEGIES: tuple[dict[str, Any], ...] = (
    {},
    {"drafter": "model,branch=2/2"},
    {"drafter": "model,tree=dynamic,nodes=8,top=2"},
    {"drafter": "early-exit,layers=1"},
    {"drafter": "layer-skip,skip=attn:0"},
    {"drafter": "window,sink=1,recent=3"},
    {"drafter": "prompt-lookup"},
    {"drafter": "suffix"},
    {"drafter": "first,of=suffix|model,match=1"},
    {"draft_length": "goodput"},
    {"draft_length": "explicit"},
    {"draft_length": "implicit"},
    {"accept": "gumbel"},
    {"graphs": "on"},
    {"schedule": "continuous,piece=4"},
    {"check": True},
    {"accept": "gumbel", "check": True, "drafter": "model,branch=2/2"},
)


@pytest.mark.wide
@pytest.mark.parametrize("given", STRATEGIES, ids=str)
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec", "rollback"])
def test_standard_strategies(align: str, given: dict[str, Any]) -> None:
    """Strategies of specframe-std use declared members alone."""
    if align == "exspec" and "schedule" in given:
        given = {"schedule": "same-length,window=4"}
    check(harness.pipeline(TARGET, DRAFT, align=align, batch_size=3, **{"draft_length": 3, **given}))


def test_a_draft_model_with_another_tokenizer() -> None:
    """It opens a cache of its own layout, and closes it for a larger one where texts have more tokens than rows."""
    target = fakes.fake_target()
    pipe = harness.pipeline(target, fakes.fake_draft(target), drafter="translated", batch_size=2, draft_length=3)
    pipe.parts.tokenizer, pipe.parts.draft_tokenizer = fakes.spelled_tokenizer(2), fakes.spelled_tokenizer(1)
    check(pipe, harness.requests(harness.random_prompts([4, 2], 61), 30))
    assert ("Run", "close_cache") in USED


SAVE: dict[str, Callable[[Path], Any]] = {
    "eagle": lambda folder: heads.eagle3(folder, TARGET, drafted=70, layers=2),
    "medusa": lambda folder: stepwise.overfitted(folder, "medusa", TARGET, [[1, 2]], tokens=4, steps=1),
    "hydra": lambda folder: stepwise.overfitted(folder, "hydra", TARGET, [[1, 2]], tokens=4, steps=1),
    "clover2": lambda folder: stepwise.overfitted(folder, "clover2", TARGET, [[1, 2]], tokens=4, steps=1),
    "dflash": functools.partial(block_heads.speculators, target=TARGET, drafted=70),
    "peagle": functools.partial(block_heads.peagle, target=TARGET, drafted=70),
    "pard": functools.partial(block_heads.pard, target=TARGET),
    "mtp": lambda folder: mtp.save_file_of(folder, TARGET),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", SAVE)
def test_heads(name: str, tmp_path: Path) -> None:
    """Heads use declared members alone, as chains and, those that can, as trees."""
    SAVE[name](tmp_path / "head")
    for shape in ("", ",tree=dynamic,nodes=8,top=2") if name == "eagle" else ("",):
        drafter = f"{name},checkpoint={tmp_path / 'head'}{shape}"
        check(harness.pipeline(TARGET, None, drafter=drafter, batch_size=3, draft_length=3))


class Curious(roles.Drafter):
    """A drafter that looks at what it may not use."""

    needs = frozenset[str]()
    offers = frozenset({"chain"})

    def __init__(self, look: Callable[[Any], Any]) -> None:
        self._look = look

    def start(self, run: Any) -> None:
        """Look."""
        self._look(run)

    def propose(self, batch: Any, budget: Any) -> Any:
        """Draft nothing."""
        raise NotImplementedError


@pytest.mark.wide(but=["<lambda>-Model declares no 'rope'"])
@pytest.mark.parametrize(
    ("look", "said"),
    [
        (lambda run: run.alignment, "Run declares no 'alignment'"),
        (lambda run: run.target.release(), "CachedModel declares no 'release'"),
        (lambda run: run.runner.config, "Model declares no 'config'"),
        (lambda run: run.open_cache(run.runner).runner.rope, "Model declares no 'rope'"),
        (lambda run: setattr(run, "stores", None), "Run declares no 'stores'"),
    ],
)
def test_what_is_not_declared_is_seen(look: Callable[[Any], Any], said: str) -> None:
    """What stand-ins return are stand-ins, too, and name the protocol and the member."""
    pipe = harness.pipeline(TARGET, Curious(look))
    pipe.parts.composition = strictly(pipe.composition, set())
    with pytest.raises(ContractError, match="UndeclaredError") as caught:
        harness.decode(pipe, ASKED)
    assert said in str(caught.value)


def test_a_strategy_inherits_what_it_leaves_out() -> None:
    """A drafter whose class inherits from its protocol writes what it proposes, and Python refuses one that does not."""

    class Least(roles.Drafter):
        def propose(self, batch: Batch, budget: Budget) -> Draft:
            return Draft(batch.last_tokens(1).repeat(1, budget.depth))

    class Less(roles.Drafter):
        pass

    harness.check(harness.pipeline(TARGET, Least(), draft_length=3), ASKED)
    with pytest.raises(TypeError, match="propose"):
        Less()


@pytest.mark.wide
def test_a_stand_in_is_its_object() -> None:
    """It is equal to its object, shows alike, and has what is declared."""
    rule = strict(harness.pipeline(TARGET, DRAFT).composition.rule, roles.AcceptanceRule)
    assert rule == rule.__wrapped__
    assert hash(rule) == hash(rule.__wrapped__)
    assert str(rule) == str(rule.__wrapped__)
    assert rule.siblings
    with pytest.raises(UndeclaredError, match="TreeRule declares no 'budget'"):
        rule.budget = 1
    assert not hasattr(rule, "no_such_member")


def protocols() -> Iterator[type]:
    """Yield the protocols of the contracts."""
    for one in pkgutil.iter_modules(contracts.__path__):
        module = importlib.import_module(f"{contracts.__name__}.{one.name}")
        for made in vars(module).values():
            if getattr(made, "_is_protocol", False) and made.__module__ == module.__name__:
                yield made


def called(source: str) -> set[str]:
    """Return the names of the members that a source text asks objects for."""
    return {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}


@pytest.mark.wide
def test_no_member_is_declared_that_nobody_asks_for() -> None:
    """The core, or a plugin of ours, has each member of each protocol by its name, somewhere outside of contracts and tests."""
    root = Path(contracts.__path__[0]).parent
    folders = [root, *(one for one in root.parent.glob("plugins/*/specframe_*") if one.is_dir())]
    sources = [one for folder in folders for one in folder.rglob("*.py")]
    asked = set[str]().union(
        *(called(one.read_text("utf-8")) for one in sources if "contracts" not in one.relative_to(root.parent).parts)
    )
    found = [*protocols()]
    assert {Model, Executor, StateStore} <= {*found}
    assert {(one.__name__, name) for one in found for name in declared(one) - asked} == set()


def test_what_strategies_may_use_is_told() -> None:
    """The page of stability lists the members of the core's classes, as stand-ins have them."""
    page = (Path(contracts.__path__[0]).parents[1] / "docs/stability.md").read_text("utf-8")
    for one in OF_THE_CORE:
        line = re.search(rf"^\| `{one.__module__}.{one.__name__}` \| (.*) \|$", page, re.MULTILINE)
        assert line, one
        assert set(re.findall(r"`(\w+)`", line[1])) == declared(one)


OTHERS = {"Run": {"caches", "draft_tokenizer"}, "CachedModel": {"forget", "reserve"}, "Watch": {"stage"}}
"""Members that the core, or who listens to a run's layouts, uses of what strategies open or are."""


@pytest.mark.wide
def test_what_is_declared_is_used(tmp_path: Path) -> None:
    """Every member that is declared of runs, caches, models, layouts and stores is used."""
    test_standard_strategies("ragged", {"drafter": "early-exit,layers=1"})
    test_standard_strategies("eqspec", {"drafter": "model,branch=2/2"})
    test_standard_strategies("ragged", {"accept": "gumbel"})
    test_standard_strategies("ragged", {"graphs": "on"})
    test_standard_strategies("ragged", {"draft_length": "goodput"})
    test_a_draft_model_with_another_tokenizer()
    for name in ("eagle", "dflash", "medusa"):
        test_heads(name, tmp_path / name)
    for one in (*OF_THE_CORE.keys() - {Pool}, Model, roles.Layout, cache.KVStore):
        used = {name for kind, name in USED if kind == one.__name__} | OTHERS.get(one.__name__, set())
        assert declared(one) - used == set(), one
