"""Aliases: short names for models, from plugins and from the user."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from specframe.errors import ModelError, PluginError, UnknownNameError, sentence
from specframe.files import replace
from specframe.models.local import CONFIG, holds, state
from specframe.plugins.entries import ModelAlias, the_one
from specframe.plugins.registry import is_plugin_folder, registry

HOME_VARIABLE = "SPECFRAME_HOME"
"""Environment variable with the folder of the user's ``models.toml``. Default: ``~/.config/specframe``."""


class AliasRow(NamedTuple):
    """One alias as ``specframe models list`` shows it; ``state`` is "local", "cached" or "not on disk"."""

    alias: str
    location: str
    target: str | None
    distribution: str
    state: str


def resolve(name: str) -> str:
    """Return the directory or hub id that a name stands for.

    An alias wins over a directory of the same name (``./name`` is the directory). A name with a ``/`` is returned unchanged,
    except that a leading ``~`` is expanded.

    Raises:
        UnknownNameError: no model has the name.
        PluginError: several plugins offer the alias, or the name belongs to a plugin that failed to load.
    """
    if "/" in name:
        location = os.path.expanduser(name)
        if is_plugin_folder(Path(location)) and not holds(Path(location), CONFIG):
            raise PluginError(registry().excuse(location))
        return location
    yours, offered = user_aliases(), registry().models
    if name in yours:
        return yours[name]
    if name in offered:
        return the_one(offered[name]).location
    if holds(Path(name), CONFIG):
        return name
    if excuse := registry().excuse(name) or registry().lack("model", name):
        raise PluginError(excuse)
    if not os.path.isdir(name):
        raise UnknownNameError("model", name, yours | offered)
    return name


def offered_location(alias: str) -> str | None:
    """Return the location that a plugin offers under an alias, which one of the user's own hides; None: none does."""
    offers = registry().models.get(alias)
    return the_one(offers).location if offers else None


def plugin_aliases() -> list[ModelAlias]:
    """Return the aliases of all plugins."""
    return [model for offers in registry().models.values() for model in offers]


def locations() -> dict[str, str]:
    """Return the location of every alias; the user's aliases win."""
    return {model.alias: model.location for model in plugin_aliases()} | user_aliases()


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


def user_aliases() -> dict[str, str]:
    """Return the user's own aliases and their locations; raise :class:`ModelError` when their file is broken."""
    try:
        pairs = tomllib.loads(_aliases_file().read_text(encoding="utf-8")).get("models", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"the aliases in {_aliases_file()} cannot be read: {sentence(error)}") from error
    if not isinstance(pairs, dict) or not all(isinstance(location, str) for location in pairs.values()):
        raise ModelError(f'the aliases in {_aliases_file()}: expected only lines of alias = "path" under [models]')
    return {alias: os.path.expanduser(location) for alias, location in pairs.items()}


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
        _aliases_file().parent.mkdir(parents=True, exist_ok=True)
        replace(_aliases_file(), "\n".join(["[models]", *lines, ""]))
    except OSError as error:
        raise ModelError(f"the aliases in {_aliases_file()} cannot be written: {sentence(error)}") from error


def _aliases_file() -> Path:
    return Path(os.environ.get(HOME_VARIABLE) or "~/.config/specframe").expanduser() / "models.toml"
