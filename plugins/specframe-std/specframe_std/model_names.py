"""The user's own names for models: what they are, and how the file of them is changed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from specframe.errors import ModelError, UnknownNameError, sentence
from specframe.models.aliases import aliases_file, plugin_aliases, user_aliases
from specframe.models.local import CONFIG, WEIGHTS, holds, on_disk
from specframe.plugins.entries import the_one
from specframe.plugins.registry import registry
from specframe_std.output_file import replace


class AliasRow(NamedTuple):
    """One alias as ``specframe models list`` shows it; ``state`` is "local", "cached" or "not on disk"."""

    alias: str
    location: str
    target: str | None
    distribution: str
    state: str


def offered_location(alias: str) -> str | None:
    """Return the location that a plugin offers under an alias, which one of the user's own hides, or None if none does."""
    offers = registry().models.get(alias)
    return the_one(offers).location if offers else None


def known_aliases() -> list[AliasRow]:
    """Return every alias, sorted. The user's aliases have the distribution "you" and hide plugins' aliases of the same name."""
    yours = user_aliases()
    rows = [
        AliasRow(model.alias, model.location, model.target, model.distribution, state(model.location))
        for model in plugin_aliases()
        if model.alias not in yours
    ]
    for alias, location in yours.items():
        hidden = registry().models.get(alias)
        rows.append(AliasRow(alias, location, hidden[0].target if hidden else None, "you", state(location)))
    return sorted(rows, key=lambda row: (row.alias, row.distribution))


def state(location: str) -> str:
    """Return whether a model is "local" (a directory), "cached" (from the hub) or "not on disk"."""
    folder = on_disk(location)
    if not holds(folder, CONFIG) or not holds(folder, WEIGHTS):
        return "not on disk"
    return "local" if os.path.isdir(location) else "cached"


def add_alias(alias: str, path: str | os.PathLike[str]) -> None:
    """Name a model's directory in the user's file; raise :class:`ModelError` for a bad name or directory."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", alias):
        raise ModelError(f"alias {alias!r}: expected letters, digits, '.', '_' and '-', the first a letter or digit")
    if alias == "auto" or alias in registry().names("drafter"):
        raise ModelError(f"alias {alias!r} already means a drafter: expected another name")
    folder = Path(os.path.expanduser(path))
    if not holds(folder, CONFIG):
        raise ModelError(f"alias {alias!r}: expected a model's directory, with a config.json, got {str(path)!r}")
    write_aliases(user_aliases() | {alias: str(folder.resolve())})


def remove_alias(alias: str) -> str:
    """Remove an alias from the user's file and return its location.

    Raises:
        ModelError: the alias belongs to a plugin.
        UnknownNameError: there is no such alias.
    """
    yours = user_aliases()
    if alias in yours:
        write_aliases({name: location for name, location in yours.items() if name != alias})
        return yours[alias]
    if alias in registry().models:
        owners = " and ".join(sorted({model.distribution for model in registry().models[alias]}))
        raise ModelError(
            f"alias {alias!r} is offered by {owners}: expected one of your own, as `models add` makes them"
        )
    raise UnknownNameError("alias of your own", alias, yours)


def write_aliases(aliases: dict[str, str]) -> None:
    """Write the user's file of aliases; raise :class:`ModelError` when it cannot be written."""
    pairs = sorted(aliases.items())
    lines = [" = ".join(json.dumps(text, ensure_ascii=False) for text in pair) for pair in pairs]
    try:
        aliases_file().parent.mkdir(parents=True, exist_ok=True)
        replace(aliases_file(), "\n".join(["[models]", *lines, ""]))
    except OSError as error:
        raise ModelError(f"the aliases in {aliases_file()} cannot be written: {sentence(error)}") from error
