"""Which runs a comparison is made of: a grid's cells, and plain decoding at each of their batch sizes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import attrs

from specframe.models import loading as models
from specframe.models.pairs import choose, chosen_name
from specframe.plugins import recipe
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry
from specframe_lab.grid import COMPARABLE_RULE, Cell, varying

PLAIN: Cell = {
    "drafter": "none",
    "align": "ragged",
    "schedule": None,
    "accept": "greedy",
    "verify": "chain",
    "kv": None,
    "draft_length": "5",
}
"""Plain decoding, which every scheme is compared with."""

DEFAULTS: Cell = {
    name: default
    for name, default in attrs.asdict(recipe.DEFAULTS, recurse=False).items()
    if isinstance(default, str | int) and not isinstance(default, bool)
}
"""Defaults of a pipeline."""

PARTS = ("schedule", "kv")
"""Options that an alignment asks for where they are left open. Where schemes differ in them, all names have them."""

UNSET = ("bitwise", "load_options", "memory")
"""Options that a cell has only where they are asked for."""

PLAIN_NAME, BETWEEN = "plain", " · "

Names = dict[tuple[str, Any], str]
"""Display names of options' values that differ from the value's text."""

NAMED = ("align", "verify", "executor")
"""Options of which "auto" is one strategy, whatever else is asked for."""

SETTING = ("target", "device", "dtype", "seed", "bitwise", "load_options", "memory")
"""Options that a scheme has in common with its plain decoding, apart from the batch size."""


@attrs.frozen
class Case:
    """One cell of a comparison, and its scheme. A scheme is a cell without its batch size."""

    scheme: str
    cell: Cell
    plain: bool = False
    timed: bool = True
    """Whether the cell is timed. A cell without timing runs once, for its tokens only."""

    @property
    def batch_size(self) -> int:
        """Rows decoded together."""
        return self.cell["batch_size"]

    @property
    def setting(self) -> tuple[Any, ...]:
        """The model, device, precision and seed, and whether logits are the same to the bit."""
        return tuple(self.cell.get(option) for option in SETTING)

    @property
    def key(self) -> str:
        """The cell as text: the key of its results."""
        return json.dumps(self.cell, sort_keys=True)

    @property
    def unlike(self) -> str | None:
        """The key of the same cell without bitwise, or None if it is that cell."""
        return json.dumps(explicit(self.cell | {"bitwise": False}), sort_keys=True) if "bitwise" in self.cell else None

    def __str__(self) -> str:
        return f"{self.scheme}, batch size {self.batch_size}"


def cases(cells: Iterable[Cell], sampling: bool = False) -> list[Case]:
    """Return plain decoding at every batch size asked for and at 1, then the other cells; no cell twice.

    Plain decoding at batch size 1 is the reference for equality. It is timed only where asked for. With ``sampling`` it is
    plain sampling.
    """
    cells = list(cells)
    full = list({json.dumps(cell, sort_keys=True): cell for cell in map(explicit, cells)}.values())
    plain = PLAIN | {"accept": COMPARABLE_RULE} if sampling else PLAIN
    beside = explicit(plain)
    differing = {*varying(cells), *(part for part in PARTS if any(cell[part] != beside[part] for cell in full))}
    differing -= {"batch_size", *(part for part in PARTS if all(cell[part] == beside[part] for cell in full))}
    if differing <= {*PARTS}:
        differing |= {"align"} if differing else set()
    named = [option for option in dict.fromkeys([*(cells[0] if cells else ()), "align", *PARTS]) if option in differing]
    brief = cases_of(full, named, brief_names(full, named), plain)
    clear = len({(case.scheme, case.batch_size) for case in brief}) == len(brief)
    return brief if clear else cases_of(full, named, {}, plain)


def cases_of(cells: list[Cell], named: list[str], names: Names, decoding: Cell) -> list[Case]:
    """Return the cases of different cells; the values of ``named`` options name a scheme, ``decoding`` is plain decoding."""
    sizes = sorted({cell["batch_size"] for cell in cells})
    settings = list(dict.fromkeys(Case("", cell).setting for cell in cells))
    shared = [option for option in (*PARTS, *SETTING) if option in named]
    plain = []
    for setting in settings:
        for size in sorted({1, *sizes}):
            cell = explicit({**decoding, **dict(zip(SETTING, setting, strict=True)), "batch_size": size})
            label = BETWEEN.join([PLAIN_NAME, *values(cell, shared, names)])
            plain.append(Case(label, cell, plain=True, timed=size in sizes))
    known = {case.key for case in plain}
    schemes = [Case(BETWEEN.join(values(cell, named, names)) or cell["align"], cell) for cell in cells]
    return [*plain, *(case for case in schemes if case.key not in known)]


def explicit(cell: Cell) -> Cell:
    """Return a cell with everything named that was left to another choice."""
    given = cell.get("drafter", DEFAULTS["drafter"])
    target, drafter, draft_model = choose(cell.get("target", DEFAULTS["target"]), given)
    cell = {**DEFAULTS, **PLAIN, **cell}
    full = recipe.Recipe(**{option: cell[option] for option in NAMED}).named(registry())
    cell |= {option: getattr(full, option) for option in NAMED}
    cell |= {"target": target, "drafter": chosen_name(given, drafter, draft_model)}
    if cell["accept"] == "auto":
        cell["accept"] = PLAIN["accept"]
    if cell["drafter"] == "none":
        cell["draft_length"] = PLAIN["draft_length"]
    elif cell["draft_length"] == "auto":
        rule, made = (
            strategy(registry(), kind, given)
            for kind, given in (("acceptance rule", cell["accept"]), ("drafter", drafter))
        )
        cell["draft_length"] = recipe.DEFAULTS.length(rule, made if recipe.own_budget(made) else drafter)
    cell["draft_length"] = str(cell["draft_length"])
    alignment = strategy(registry(), "alignment", cell["align"])
    device = models.pick_device(cell["device"])
    dtype = models.pick_dtype(cell["dtype"], device)
    for option in UNSET:
        if cell.get(option) in (None, False, "none"):
            cell.pop(option, None)
    return {
        **cell,
        "schedule": cell["schedule"] or alignment.scheduler,
        "kv": cell["kv"] or alignment.kv,
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
    }


def is_plain(scheme: str) -> bool:
    """Return whether a scheme's name is plain decoding's."""
    return scheme.partition(BETWEEN)[0] == PLAIN_NAME


def values(cell: Cell, named: Iterable[str], names: Names) -> list[str]:
    """Return the display names of some of a cell's option values; what is off has none."""
    given = [(option, cell.get(option)) for option in named]
    return [names.get(one) or value_name(*one) for one in given if one not in [(option, None) for option in UNSET]]


def value_name(option: str, value: Any) -> str:
    """Return the display name of one option's value."""
    if option == "draft_length" and value.isdigit():
        return f"K {value}"
    if option == "bitwise":
        return option
    if option == "seed":
        return f"seed {value}"
    return "no draft" if (option, value) == ("drafter", "none") else str(value)


def brief_names(cells: list[Cell], named: Iterable[str]) -> Names:
    """Return short names: models without their folder, strategies without the settings that do not distinguish them."""
    names: Names = {}
    for option in named:
        given = {cell[option] for cell in cells if isinstance(cell.get(option), str)}
        for value in given:
            name, *settings = value.split(",")
            alike = [set(other.split(",")[1:]) for other in given if other.split(",")[0] == name]
            common = set.intersection(*alike) if len(alike) > 1 else set()
            if option in ("target", "drafter"):
                name = name.rstrip("/").rpartition("/")[2] or name
            brief = ",".join([name, *(pair for pair in settings if pair not in common)])
            if brief != value:
                names[option, value] = brief
    return names
