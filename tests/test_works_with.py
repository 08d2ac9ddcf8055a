"""docs/works-with.md: its cells are what runs on the embedded pair say, and the runs that it calls tried are made here."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pages import ROOT

from specframe import Pipeline, Sampling
from specframe.errors import CompositionError, OptionError
from specframe.plugins.compose import strategy_name
from specframe.plugins.registry import registry

_specification = importlib.util.spec_from_file_location("works_with", ROOT / "docs/works_with.py")
works_with = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(works_with)
TRIED, KINDS = works_with.TRIED, works_with.KINDS
PROMPTS = ["import os\n", "def read_lines(path):\n"]
NEW = 3


def cells(name: str) -> dict[tuple[str, str], str]:
    """Return the cells of one of the page's tables, by the words of their row and their column."""
    page = (ROOT / "docs/works-with.md").read_text(encoding="utf-8")
    text = re.search(rf"<!-- {name}: .*?-->\n(.*?)<!-- end of {name} -->", page, flags=re.DOTALL)[1]
    head, _, *rows = ([part.strip(" `") for part in line.strip("|").split("|")] for line in text.splitlines())
    columns = [column.rpartition("`")[2] for column in head[1:]]
    return {
        (name, column): cell
        for names, *row in rows
        for name in names.split("`, `")
        for column, cell in zip(columns, row, strict=True)
    }


@pytest.fixture(scope="module")
def embedded() -> dict[str, Any]:
    """The embedded target, loaded once, as options of a pipeline."""
    pipe = Pipeline("tiny", None)
    return {"target": pipe.target_model, "tokenizer": pipe.tokenizer, "batch_size": 2}


def decoded(embedded: dict[str, Any], sampling: Sampling | None = None, **how: Any) -> list[list[int]]:
    """Return the tokens of a run on the embedded target."""
    pipe = Pipeline(**embedded | how)
    try:
        results = list(pipe.generate(PROMPTS, max_new_tokens=NEW, sampling=sampling))
    finally:
        pipe.close()
    assert [result.error for result in results if result.error] == []
    return [result.token_ids for result in results]


def works(embedded: dict[str, Any], **how: Any) -> bool:
    """Return whether a run decodes; False: it is refused before it does."""
    try:
        return len(decoded(embedded, **how)) > 0
    except (CompositionError, OptionError):
        return False


@pytest.mark.wide
@pytest.mark.parametrize("align", sorted(entry.name for entry in registry().of("alignment")))
def test_alignments(embedded: dict[str, Any], align: str) -> None:
    """An alignment runs on the KV backends and under the schedulers that its row names, and takes its defaults by itself."""
    row = {column: cell for (name, column), cell in cells("alignments").items() if name == align}
    for option, kind in {"kv": "KV backend", "schedule": "scheduler"}.items():
        for entry in registry().of(kind):
            how = {"align": align, option: entry.name, "drafter": "prompt-lookup"}
            assert works(embedded, **how) is not row[entry.name].startswith("no"), (option, entry.name)
    use = Pipeline(**embedded, drafter=None, align=align).composition
    chosen = {
        strategy_name(registry(), "KV backend", None, use.kv),
        strategy_name(registry(), "scheduler", None, use.scheduler),
    }
    assert {name for name, cell in row.items() if cell == "default"} == chosen
    assert row["lossless"] == ("yes" if use.lossless else "no")


@pytest.mark.wide(but=["typical"])
@pytest.mark.parametrize("rule", sorted(entry.name for entry in registry().of("acceptance rule")))
def test_rules(embedded: dict[str, Any], rule: str) -> None:
    """A temperature is refused where the rule's row says so, and two draft lengths give the same tokens where it says so."""
    row = {column: cell for (name, column), cell in cells("acceptance rules").items() if name == rule}
    how: dict[str, Any] = {"drafter": "prompt-lookup", "accept": rule, "sampling": Sampling(temperature=0.8)}
    assert works(embedded, **how) is (row["temperature"] == "yes")
    if row["same tokens for any draft"] == "yes":
        how["sampling"] = Sampling(temperature=0.8) if row["temperature"] == "yes" else None
        assert decoded(embedded, **how, draft_length=1) == decoded(embedded, **how, draft_length=4)
    use = Pipeline(**embedded, drafter="tiny-draft", accept=rule).composition
    assert row["default draft length"] == strategy_name(registry(), "draft-length policy", "auto", use.policy)


def specification(drafter: str, shape: str) -> str | None:
    """Return how a drafter is asked for drafts of a shape, or None if it has no such option."""
    takes = "tree" in registry().entry("drafter", drafter).traits.options
    if not takes:
        return TRIED[drafter] if shape == "chain" else None
    return f"{TRIED[drafter]},tree={shape}"


QUICK = {("prompt-lookup", "align"), ("model", "accept")}
"""What runs by default: alignments are tried with chains, and rules with trees as well."""
CASES = [
    pytest.param(drafter, table, option, marks=() if (drafter, option) in QUICK else pytest.mark.slow)
    for table, option in (("alignments", "align"), ("acceptance rules", "accept"))
    for drafter in TRIED
]


@pytest.mark.wide
@pytest.mark.parametrize(("drafter", "table", "option"), CASES)
def test_drafts(embedded: dict[str, Any], drafter: str, table: str, option: str) -> None:
    """A drafter drafts the shapes that its row names under each alignment and rule, and others are refused."""
    row = {column: cell for (name, column), cell in cells(f"drafters and {table}").items() if name == drafter}
    for strategy, cell in row.items():
        for shape in works_with.SHAPES:
            if (asked := specification(drafter, shape)) is not None:
                named = cell == "yes" or shape in cell.split(", ")
                assert works(embedded, drafter=asked, **{option: strategy}) is named, (strategy, shape)


RUNS = [
    pytest.param(
        drafter, kind, marks=() if (place + number) % len(TRIED) == 0 and kind != "workers" else pytest.mark.slow
    )
    for place, drafter in enumerate(TRIED)
    for number, kind in enumerate(KINDS)
]


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    """The executor of the runs by workers: its process goes on from one run to the next."""
    made = registry().make("executor", KINDS["workers"]["executor"])
    yield made
    made.dismiss()


@pytest.mark.wide
@pytest.mark.parametrize(("drafter", "kind"), RUNS)
def test_runs_of_every_kind(embedded: dict[str, Any], workers: Any, drafter: str, kind: str) -> None:
    """A run of a kind gives the tokens of plain decoding in this process with the same options, whatever drafts."""
    assert cells("tried")[drafter, kind] == "tried"
    how = {"accept": "gumbel", "seed": 3, **KINDS[kind]}
    plain = decoded(embedded, drafter=None, **{option: value for option, value in how.items() if option != "executor"})
    if "executor" in how:
        how["executor"] = workers
    assert decoded(embedded, drafter=TRIED[drafter], **how) == plain
