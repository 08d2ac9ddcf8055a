"""Short names for models: those that plugins offer, and the user's own."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from specframe.errors import ModelError, UnknownNameError, sentence
from specframe.files import replace
from specframe.ondisk import CONFIG, holds, state
from specframe.plugins import registry

HOME_VARIABLE = "SPECFRAME_HOME"
"""Environment variable: the folder of the user's ``models.toml``; ``~/.config/specframe`` when it is not set."""


class AliasRow(NamedTuple):
    """One alias as ``specframe models list`` shows it; ``state`` is "local", "cached" or "not on disk"."""

    alias: str
    location: str
    target: str | None
    distribution: str
    state: str


def resolve(name: str) -> str:
    """Return the directory or hub id that a name stands for; raise :class:`UnknownNameError` when it stands for none.

    An alias wins over a directory of the same name (``./name`` is the directory); a name with a ``/`` is returned as it
    is, save for a leading ``~``.
    """
    if "/" in name:
        return os.path.expanduser(name)
    known = _locations()
    if name not in known and not os.path.isdir(name):
        raise UnknownNameError("model", name, known)
    return known.get(name, name)


def paired_target(alias: str) -> str | None:
    """Return the alias of the target that an alias drafts for, or None."""
    model = registry().models.get(alias)
    return model.target if model else None


def paired_drafter(target: str) -> str | None:
    """Return an alias that drafts for a target, given by its alias or by what that stands for, or None."""
    offered, known = registry().models, _locations()
    meant = known.get(target, os.path.expanduser(target))
    for alias, model in offered.items():
        if model.target and (target == model.target or meant == known.get(model.target)):
            return alias
    return None


def _locations() -> dict[str, str]:
    """Return what every alias stands for; the user's own come first."""
    return {alias: model.location for alias, model in registry().models.items()} | user_aliases()


def known_aliases() -> list[AliasRow]:
    """Return every alias, sorted; the user's own have the distribution "you" and hide those of plugins."""
    offered = {alias: (model.location, model.distribution) for alias, model in registry().models.items()}
    known = offered | {alias: (location, "you") for alias, location in user_aliases().items()}
    return [
        AliasRow(alias, location, paired_target(alias), distribution, state(location))
        for alias, (location, distribution) in sorted(known.items())
    ]


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
    folder = Path(path).expanduser().resolve()
    if not holds(folder, CONFIG):
        raise ModelError(f"alias {alias!r}: expected a model's directory, with a config.json, got {str(path)!r}")
    pairs = sorted((user_aliases() | {alias: str(folder)}).items())
    lines = [" = ".join(json.dumps(text, ensure_ascii=False) for text in pair) for pair in pairs]
    try:
        _aliases_file().parent.mkdir(parents=True, exist_ok=True)
        replace(_aliases_file(), "\n".join(["[models]", *lines, ""]))
    except OSError as error:
        raise ModelError(f"the aliases in {_aliases_file()} cannot be written: {sentence(error)}") from error


def _aliases_file() -> Path:
    return Path(os.environ.get(HOME_VARIABLE) or "~/.config/specframe").expanduser() / "models.toml"
