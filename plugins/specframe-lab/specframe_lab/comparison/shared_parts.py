"""One scheduler and one KV backend for all alignments of a comparison, so that the alignment alone differs between schemes."""

from __future__ import annotations

from collections.abc import Iterable

from specframe.contracts.roles import Alignment
from specframe.plugins.compose import strategy
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry
from specframe_lab.comparison.schemes import PLAIN, Case
from specframe_lab.grid import Cell

AT_ITS_BEST = "--each-at-its-best"
"""The option that gives each alignment the scheduler and the KV backend that it asks for itself."""


def with_shared_parts(cells: Iterable[Cell]) -> list[Cell]:
    """Return cells whose scheduler and KV backend, where they are left open, are ones that all their alignments can use.

    These are plain decoding's, else the first that an alignment asks for, else the first that is installed. Where no KV backend
    can be used by all, alignments that cannot use plain decoding's have their own.
    """
    cells = list(cells)
    alignments = {name: alignment(name) for name in map(named, cells)}
    plain = alignment(PLAIN["align"])
    asked = [plain.kv, *(one.kv for one in alignments.values())]
    stores = dict.fromkeys([*asked, *(entry.name for entry in registry().of("KV backend"))])
    shared = next((kv for kv in stores if all(able(one, kv) for one in alignments.values())), None)

    def filled(cell: Cell) -> Cell:
        own = alignments[named(cell)]
        kv = shared or (plain.kv if able(own, plain.kv) else own.kv)
        return cell | {"schedule": cell.get("schedule") or plain.scheduler, "kv": cell.get("kv") or kv}

    return [filled(cell) for cell in cells]


def named(cell: Cell) -> str:
    """Return a cell's alignment."""
    return Recipe(align=cell.get("align", "auto")).named(registry()).align


def alignment(name: str) -> Alignment:
    """Return an alignment by its name."""
    return strategy(registry(), "alignment", name)


def able(one: Alignment, kv: str) -> bool:
    """Whether an alignment can use a KV backend."""
    return one.needs <= strategy(registry(), "KV backend", kv).offers


def parts_told(cases: Iterable[Case]) -> list[str]:
    """Return a sentence on the schedulers and KV backends of the schemes: which all share, or that they differ as well."""
    cases = [case for case in cases if case.timed]
    schemes, plain = ([parts_of(case) for case in cases if case.plain == which] for which in (False, True))
    by_alignment: dict[str, set[Parts]] = {}
    for case in cases:
        if not case.plain:
            by_alignment.setdefault(case.cell["align"], set()).add(parts_of(case))
    own = {name: (alignment(name).scheduler, alignment(name).kv) for name in by_alignment}
    if len(set(schemes)) == 1:
        beside = f", plain decoding {' and '.join(plain[0])}" if plain and plain[0] != schemes[0] else ""
        other = [f"{name} {' and '.join(parts)}" for name, parts in own.items() if parts != schemes[0]]
        more = f"; {AT_ITS_BEST} takes what each alignment asks for: {', '.join(other)}" if other else ""
        return [f"All schemes have scheduler {schemes[0][0]} and KV backend {schemes[0][1]}{beside}{more}."]
    if len(own) < 2 or any(len(parts) > 1 for parts in by_alignment.values()):
        return []  # they are what the comparison varies
    users: dict[Parts, list[str]] = {}
    for name, (parts,) in by_alignment.items():
        users.setdefault(parts, []).append(name)
    told = "; ".join(f"{', '.join(names)} on {' and '.join(parts)}" for parts, names in users.items())
    return [f"Schemes differ in scheduler or KV backend, too, and not in the alignment alone: {told}.{remedy([*own])}"]


Parts = tuple[str, str]
"""The names of a scheduler and of a KV backend."""


def parts_of(case: Case) -> Parts:
    """Return a case's scheduler and KV backend."""
    return case.cell["schedule"], case.cell["kv"]


def remedy(alignments: list[str]) -> str:
    """Return what to pass so that alignments share both parts, as far as their needs allow."""
    stores = [entry.name for entry in registry().of("KV backend")]
    users = {kv: [name for name in alignments if able(alignment(name), kv)] for kv in stores}
    if alignments in users.values():
        return f" Without {AT_ITS_BEST} they share both."
    kv, most = max(users.items(), key=lambda both: len(both[1]))
    return f" No KV backend can be used by all of them; --kv {kv} compares {', '.join(most)} alone."
