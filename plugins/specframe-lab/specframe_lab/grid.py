"""Grids: several values per option, expanded into cells, each checked before any model is loaded."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from specframe.errors import CompositionError, OptionError, SpecframeError

Cell = dict[str, Any]
"""One value for each option of :class:`specframe.Pipeline`."""


COMPARABLE_RULE = "gumbel"
"""The acceptance rule of sampled tokens that are compared id by id: its tokens are the same whatever was drafted."""


@attrs.frozen
class Grid:
    """The cells that can be run, and the excluded cells, each with the reason why its strategies do not fit each other."""

    cells: list[Cell]
    refused: list[tuple[Cell, str]] = attrs.Factory(list)


def split_list(text: str) -> list[str]:
    """Split a comma list of values; a part with ``=`` is an option of the name before it.

    ``ragged,masking,positions=content,eqspec`` is ``ragged``, ``masking,positions=content`` and ``eqspec``.
    """
    values: list[str] = []
    for part in map(str.strip, text.split(",")):
        if not part:
            raise OptionError(f"the list {text!r}: expected a value between two commas, got nothing")
        if "=" not in part:
            values.append(part)
        elif values:
            values[-1] += f",{part}"
        else:
            raise OptionError(f"the list {text!r}: expected a name before {part!r}, as in 'name,{part}'")
    return list(dict.fromkeys(values))


def expand(options: Mapping[str, Any]) -> list[Cell]:
    """Return one cell per combination of values, the last option varying fastest.

    A text is split as a comma list, a list gives its elements, anything else is a single value.
    """
    axes = [values(given) for given in options.values()]
    return [dict(zip(options, chosen, strict=True)) for chosen in itertools.product(*axes)]


def values(given: Any) -> list[Any]:
    """Return the values of one option."""
    if isinstance(given, str):
        return split_list(given)
    if isinstance(given, list | tuple):
        if not given:
            raise OptionError("a list of values: expected at least one, got none")
        return list(given)
    return [given]


def checked(cells: Iterable[Cell], faults: list[tuple[Cell, SpecframeError]] | None = None) -> Grid:
    """Return the cells after checking every value, with those set apart whose strategies do not fit each other.

    Args:
        cells: one value per option.
        faults: takes the cells with a value that nothing provides, or None if the first of them is raised.

    Raises:
        SpecframeError: a value that nothing provides, or no cell that can be run.
    """
    grid = Grid([])
    for cell in cells:
        try:
            check_cell(cell)
        except CompositionError as fault:
            grid.refused.append((cell, str(fault)))
        except SpecframeError as fault:
            if faults is None:
                raise
            faults.append((cell, fault))
        else:
            grid.cells.append(cell)
    if not grid.cells and faults:
        raise faults[0][1]
    if not grid.cells:
        raise CompositionError(grid.refused[0][1] if grid.refused else "the grid has no cell")
    return grid


def check_cell(cell: Cell) -> None:
    """Compose one cell's strategies and look its models up, without loading them."""
    from specframe.models import aliases
    from specframe.models import loading as models
    from specframe.models.pairs import choose
    from specframe.plugins.compose import compose
    from specframe.plugins.recipe import Recipe
    from specframe.plugins.registry import registry
    from specframe.value_checks import whole

    recipe = Recipe(**cell)
    target, drafter, draft_model = choose(recipe.target, recipe.drafter)
    for name in (target, draft_model):
        if isinstance(name, str):
            aliases.resolve(name)
    compose(registry(), recipe, drafter)
    whole("batch_size", recipe.batch_size, 1)
    models.pick_dtype(recipe.dtype, models.pick_device(recipe.device))
    models.keywords(recipe.load_options)


def varying(cells: Iterable[Cell]) -> list[str]:
    """Return the options that differ between cells, in the cells' own order."""
    cells = list(cells)
    return [option for option in cells[0] if any(cell[option] != cells[0][option] for cell in cells)] if cells else []
