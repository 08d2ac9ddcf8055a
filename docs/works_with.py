"""The tables of docs/works-with.md: which strategies and options go together.

A cell is asked of the code that refuses a run: a composition of the strategies, an executor before it loads, a request before it is
decoded. A drafter that needs a checkpoint is represented by the capabilities that it declares. The last table has the runs that
tests/test_works_with.py makes of :data:`TRIED` and :data:`KINDS`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import attrs
from specframe_std.trees.tree_options import KINDS as SHAPES
from specframe_std.trees.tree_options import Trees

from specframe.contracts.engine import LoadingExecutor
from specframe.engine.request_factory import RequestFactory
from specframe.errors import SpecframeError
from specframe.plugins.compose import Composition, compose, strategy
from specframe.plugins.entries import Entry
from specframe.plugins.recipe import DEFAULTS, PLAIN, Recipe
from specframe.plugins.registry import registry
from specframe.text.sampling import Sampling

WORD = re.compile(r"needs '(\w+)' to be offered")
"""The word that a refusal names as lacking."""
RANKED = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
"""The environment of a rank, in which an executor of ranks tells what it refuses."""

TRIED = {
    "none": "none",
    "model": "tiny-draft",
    "prompt-lookup": "prompt-lookup",
    "suffix": "suffix",
    "first": "first,of=suffix|tiny-eagle3",
    "early-exit": "early-exit,layers=1",
    "layer-skip": "layer-skip,skip=attn:1",
    "window": "window,sink=1,recent=8",
    "eagle": "tiny-eagle3",
    "medusa": "tiny-medusa",
    "clover2": "tiny-clover2",
    "dflash": "tiny-dflash",
}
"""The drafters that draft for the embedded target, and how they are asked for."""
CERTAIN = ("prompt-lookup", "suffix")
"""The drafters whose trees are found, and not drawn: every rule for trees may be given any part of them."""
KINDS: Mapping[str, Mapping[str, Any]] = {
    "temperature": {"sampling": Sampling(temperature=0.8)},
    "samples": {"sampling": Sampling(temperature=0.8, samples=2)},
    "log-probabilities": {"sampling": Sampling(logprobs=2)},
    "stop strings": {"sampling": Sampling(stop="e")},
    "bitwise": {"bitwise": True},
    "recorded forwards": {"graphs": "on"},
    "workers": {"executor": "workers,count=1"},
}
"""Kinds of runs, and the options that ask for them."""


class Declared:
    """A drafter as it is declared, for chains or for trees. It composes, and does not draft."""

    def __init__(self, entry: Entry, shape: str) -> None:
        trees = Trees(shape)
        needs = trees.needs - {"prunable"} if entry.name in CERTAIN else trees.needs
        self.needs = entry.traits.able("needs") | needs
        self.offers = trees.offers | entry.traits.able("offers") & {"logits"}

    def start(self, run: Any) -> None:
        """Be there, as the role asks."""

    propose = observe = start


def shapes(entry: Entry) -> list[str]:
    """Return the shapes that a drafter's options ask for."""
    known = SHAPES if entry.name not in CERTAIN else [shape for shape in SHAPES if shape != "static"]
    return [*known] if "tree" in entry.traits.options else [SHAPES[0]]


def composed(drafter: Any = PLAIN, **how: Any) -> Composition | str:
    """Return the composition of a run with these options, or the sentence that refuses it."""
    try:
        return compose(registry(), attrs.evolve(DEFAULTS, **how).checked(), drafter)
    except SpecframeError as refusal:
        return str(refusal)


def lacking(refusal: str) -> str:
    """Return the cell of a refusal: the capabilities that are lacking, where it names them."""
    found = WORD.search(refusal)
    return f"no: `{found[1]}`" if found else "no"


def cell(made: Composition | str, told: str = "yes") -> str:
    """Return "yes" or another word for a run that composes, and for another one the reason."""
    return lacking(made) if isinstance(made, str) else told


def drafts(entry: Entry, **how: Any) -> str:
    """Return the shapes that a drafter may draft in a run with these options, or the capabilities that are lacking."""
    made = {shape: composed(Declared(entry, shape), **how) for shape in shapes(entry)}
    able = [shape for shape, one in made.items() if not isinstance(one, str)]
    if not able:
        return cell(made[SHAPES[0]])
    return "yes" if entry.name == registry().default("plain decoding") else ", ".join(able)


def table(corner: str, columns: Iterable[str], rows: Mapping[str, Iterable[str]]) -> str:
    """Return a table in Markdown; names are set as code."""
    head = [corner, *columns]
    lines = [head, ["---"] * len(head), *([f"`{name}`", *cells] for name, cells in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def grouped(rows: Mapping[str, Iterable[str]]) -> dict[str, Iterable[str]]:
    """Return rows with one row for all names that have the same cells."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, cells in rows.items():
        alike.setdefault(tuple(cells), []).append(name)
    return {"`, `".join(together): cells for cells, together in alike.items()}


def names(kind: str) -> list[str]:
    """Return the names of a kind that this repository's plugins offer."""
    return sorted(entry.name for entry in registry().of(kind))


def code(kind: str, given: Iterable[str]) -> list[str]:
    """Return names of a kind as heads of columns."""
    return [f"{kind} `{name}`" for name in given]


def alignments() -> str:
    """Return the table of alignments with KV backends, schedulers and attention backends."""
    known, stores, schedulers = registry(), names("KV backend"), names("scheduler")
    rows = {}
    for entry in sorted(known.of("alignment"), key=lambda one: one.name):
        own = entry.traits
        kv = (cell(composed(align=entry.name, kv=name), "default" if name == own.kv else "yes") for name in stores)
        order = (
            cell(composed(align=entry.name, schedule=name), "default" if name == own.scheduler else "yes")
            for name in schedulers
        )
        rows[entry.name] = ["yes" if "lossless" in own.able("offers") else "no", *kv, *order]
    return table("alignment", ["lossless", *code("KV", stores), *code("scheduler", schedulers)], rows)


def attention() -> str:
    """Return the table of attention backends with KV backends, and with bitwise equality."""
    stores = names("KV backend")
    align = {entry.traits.kv: entry.name for entry in registry().of("alignment")}
    other = registry().default("alignment")
    rows = {
        name: [
            *(cell(composed(attention=name, kv=kv, align=align.get(kv, other))) for kv in stores),
            cell(composed(attention=name, bitwise=True)),
            cell(composed(attention=name, layers="compiled")),
        ]
        for name in names("attention backend")
    }
    return table("attention backend", [*code("KV", stores), "bitwise", "compiled layers"], rows)


def drafters(kind: str, option: str) -> str:
    """Return the table of drafters with the strategies of another role, which an option chooses."""
    entries = sorted(registry().of("drafter"), key=lambda entry: entry.name)
    rows = {entry.name: [drafts(entry, **{option: name}) for name in names(kind)] for entry in entries}
    return table("drafter", [f"`{name}`" for name in names(kind)], grouped(rows))


def rules() -> str:
    """Return the table of acceptance rules with what requests ask for."""
    rows = {}
    for name in names("acceptance rule"):
        use = composed(accept=name)
        assert isinstance(use, Composition)
        recipe, adaptive = attrs.evolve(DEFAULTS, accept=name), registry().default("adaptive draft length")
        rows[name] = [
            "yes" if "lossless" in use.rule.offers else "no",
            "no" if refuses_temperature(recipe, use) else "yes",
            adaptive if recipe.length(use.rule, "auto") == adaptive else "fixed",
            "yes" if "draft-invariant" in use.rule.offers else "no",
        ]
    return table(
        "acceptance rule", ["lossless", "temperature", "default draft length", "same tokens for any draft"], rows
    )


def refuses_temperature(recipe: Recipe, use: Composition) -> bool:
    """Return whether requests with a temperature are refused."""
    try:
        parts = SimpleNamespace(composition=use, target=None, tokenizer=None)
        RequestFactory(recipe, cast(Any, parts)).require_sampling("temperature 1")
    except SpecframeError:
        return True
    return False


def executors() -> str:
    """Return the table of executors with options, and with the server."""
    options: dict[str, dict[str, Any]] = {
        "bitwise": {"bitwise": True},
        "compiled layers": {"layers": "compiled"},
        "recorded forwards": {"graphs": "on"},
    }
    rows = {}
    for name in names("executor"):
        made = strategy(registry(), "executor", name)
        refused = (refuses(made, attrs.evolve(DEFAULTS, **how)) for how in options.values())
        rows[name] = ["no" if one else "yes" for one in (*refused, "ranks" in made.offers)]
    return table("executor", [*options, "`serve`"], rows)


def refuses(executor: Any, recipe: Recipe) -> bool:
    """Return whether an executor that decides how models are loaded refuses options, before it loads any."""
    if "loading" not in executor.offers:
        return False
    with mock.patch.dict(os.environ, RANKED):
        try:
            cast(LoadingExecutor, executor).device(recipe)
        except SpecframeError:
            return True
    return False


def deferred() -> str:
    """Return the table of the strategies of each role with which rounds can be deferred, and of those with which they cannot."""
    rows = {}
    for kind in ("drafter", "acceptance rule", "alignment", "scheduler", "draft-length policy", "KV backend"):
        entries = [registry().entry(kind, name) for name in names(kind)]
        able = [one.name for one in entries if "deferred" in one.traits.able("offers")]
        rows[kind] = [", ".join(f"`{name}`" for name in names(kind) if (name in able) == one) for one in (True, False)]
    return table("role", ["deferred", "synchronous"], rows)


def tried() -> str:
    """Return the table of the drafters that are tried in runs of all kinds."""
    return table("drafter", KINDS, grouped({name: ["tried"] * len(KINDS) for name in TRIED}))


def example() -> str:
    """Return a sentence that refuses a combination, in a block of text."""
    drafter = next(entry for entry in registry().of("drafter") if entry.traits.able("needs") & {"share"})
    align = next(entry for entry in registry().of("alignment") if "share" not in entry.traits.able("offers"))
    told = str(composed(Declared(drafter, SHAPES[0]), align=align.name))
    return f"```text\n{told.replace(Declared.__name__, drafter.name)}\n```"


TABLES: Mapping[str, Callable[[], str]] = {
    "example": example,
    "alignments": alignments,
    "attention backends": attention,
    "drafters and alignments": lambda: drafters("alignment", "align"),
    "drafters and acceptance rules": lambda: drafters("acceptance rule", "accept"),
    "acceptance rules": rules,
    "deferred rounds": deferred,
    "executors": executors,
    "tried": tried,
}
"""The generated parts of the page, by name."""


def fill(page: str) -> str:
    """Return the page with its generated parts."""
    for name, make in TABLES.items():
        part = re.compile(rf"(<!-- {name}: .*?-->\n).*?(<!-- end of {name} -->)", flags=re.DOTALL)
        if (found := part.search(page)) is not None:
            page = f"{page[: found.start()]}{found[1]}{make()}\n{found[2]}{page[found.end() :]}"
    return page
