"""Aliases: short names for models, from plugins and from the user."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from specframe.errors import ModelError, PluginError, UnknownNameError, sentence
from specframe.models.local import CONFIG, holds
from specframe.plugins.entries import ModelAlias, the_one
from specframe.plugins.registry import is_plugin_folder, registry

HOME_VARIABLE = "SPECFRAME_HOME"
"""Environment variable with the folder of the user's ``models.toml``. Default: ``~/.config/specframe``."""


def resolve(name: str) -> str:
    """Return the directory or hub id of a name.

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


def plugin_aliases() -> list[ModelAlias]:
    """Return the aliases of all plugins."""
    return [model for offers in registry().models.values() for model in offers]


def locations() -> dict[str, str]:
    """Return the location of every alias; the user's aliases win."""
    return {model.alias: model.location for model in plugin_aliases()} | user_aliases()


def user_aliases() -> dict[str, str]:
    """Return the user's own aliases and their locations; raise :class:`ModelError` when their file is broken."""
    try:
        pairs = tomllib.loads(aliases_file().read_text(encoding="utf-8")).get("models", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"the aliases in {aliases_file()} cannot be read: {sentence(error)}") from error
    if not isinstance(pairs, dict) or not all(isinstance(location, str) for location in pairs.values()):
        raise ModelError(f'the aliases in {aliases_file()}: expected only lines of alias = "path" under [models]')
    return {alias: os.path.expanduser(location) for alias, location in pairs.items()}


def aliases_file() -> Path:
    """Return the user's file of aliases."""
    return Path(os.environ.get(HOME_VARIABLE) or "~/.config/specframe").expanduser() / "models.toml"
