"""Choice of target, drafter and draft model from names. The module does not import torch, so that a wrong name fails at once."""

from __future__ import annotations

import os
import sys
from typing import Any

from specframe.errors import (
    ModelError,
    OptionError,
    PluginError,
    UnknownNameError,
    literal,
    sentence,
)
from specframe.models import aliases
from specframe.models.local import configuration, require_model_folder
from specframe.plugins.entries import the_one
from specframe.plugins.missing_packages import HEADS, SIGNS
from specframe.plugins.recipe import PLAIN
from specframe.plugins.registry import parse_specification, quote, registry

OF = "of"
"""The option by which a drafter names those that it is made of, with | between them."""


def choose(target: Any, drafter: Any) -> tuple[Any, Any, Any]:
    """Return the target, the drafter strategy, and the draft model or None.

    Args:
        target: an alias, a directory, a hub id or a loaded model; "auto": the target paired with ``drafter``, or the default one.
        drafter: a model as for ``target``, a drafter's name with options, or a drafter object; plain decoding for None or "none",
            the draft model paired with ``target`` for "auto". A model may have the options of the default drafter for draft models,
            which without a model has the paired one.

    Raises:
        OptionError: the target has another type, or "auto" finds no draft model for it.
        UnknownNameError, PluginError: no drafter or model has the name, or its plugin failed to load.
        ModelError: "auto" was given and the target's directory is missing.
    """
    target, drafter = as_text(target), as_text(drafter)
    if isinstance(target, str) and target == "auto":
        paired = paired_target(drafter.partition(",")[0]) if isinstance(drafter, str) else None
        target = paired or registry().default("target")
    check_target(target)
    if drafter is None or (isinstance(drafter, str) and drafter == PLAIN):
        return target, registry().default("plain decoding"), None
    if isinstance(drafter, str) and drafter == "auto":
        drafter = paired_drafter(target) if isinstance(target, str) else None
        if drafter is None:
            if isinstance(target, str):
                check_location("target", target)
            without = "".join(f" {name!r} or" for name in needing_no_model())
            raise OptionError(
                f"no draft model is known for target {str(target)[:80]!r}: name one as the drafter,"
                f"{without and f'{without[:-3]}, which need none,'} or {PLAIN!r} for plain decoding"
            )
    if isinstance(drafter, str):
        name, options = split(drafter)
        drafters = registry().names("drafter")
        if name in drafters and OF in (given := parse_specification(drafter)[1]):
            return target, *composed(target, name, given)
        if name in drafters:
            paired = paired_drafter(target) if name == by_model() and isinstance(target, str) else None
            return target, drafter, paired
        try:
            location = aliases.resolve(name)
        except UnknownNameError as fault:
            why = registry().lack("drafter", name)
            known = [*drafters, *fault.known]
            raise (PluginError(why) if why else UnknownNameError("drafter or model", name, known)) from None
        head = recognise(location)
        return (target, by_model() + options, name) if head is None else (target, head + options, None)
    return (target, by_model(), drafter) if is_module(drafter) else (target, drafter, None)


def composed(target: Any, name: str, options: dict[str, Any]) -> tuple[str, Any]:
    """Return a drafter that is made of others, with those that its option :data:`OF` names resolved, and their draft model or None.

    Raises:
        OptionError: several of them need different draft models.
    """
    chosen = [choose(target, part.strip())[1:] for part in str(options[OF]).split("|")]
    drafts = [draft for _, draft in chosen if draft is not None]
    if any(draft != drafts[0] for draft in drafts):
        raise OptionError(f"{OF}: expected at most one draft model, got {' and '.join(map(repr, drafts))}")
    options = options | {OF: "|".join(str(part) for part, _ in chosen)}
    return ",".join([name, *(quote(f"{key}={value}") for key, value in options.items())]), drafts[0] if drafts else None


def paired_target(alias: str) -> str | None:
    """Return the alias of the target that an alias drafts for, or None."""
    offers = [model for model in aliases.plugin_aliases() if model.alias == alias]
    return the_one(offers).target if offers else None


def paired_drafter(target: str) -> str | None:
    """Return the alias of a draft model for a target, or None; the target is given by alias or by location."""
    known = aliases.locations()
    meant = known.get(target, os.path.expanduser(target))
    for model in aliases.plugin_aliases():
        if model.target and (target == model.target or meant == known.get(model.target)):
            return model.alias
    return None


def split(drafter: str) -> tuple[str, str]:
    """Return the name of a drafter or model, and its options with the comma before them. A directory's name may have commas."""
    ends = [len(drafter), *(place for place in range(len(drafter) - 1, 0, -1) if drafter[place] == ",")]
    for end in ends:
        if "," in drafter[:end] and os.path.isdir(os.path.expanduser(drafter[:end])):
            return drafter[:end], drafter[end:]
    name, _ = parse_specification(drafter)
    return name, drafter.removeprefix(name)


def by_model() -> str:
    """Return the name of the drafter that uses a draft language model."""
    return registry().default("draft model")


def needing_no_model() -> list[str]:
    """Return the names of the drafters that any target has without a draft model, as far as plugins offer them."""
    known = registry()
    return [known.default(purpose) for purpose in ("prompt lookup", "early exit") if known.defaults.get(purpose)]


def chosen_name(given: Any, drafter: Any, draft: Any) -> Any:
    """Return the name of what :func:`choose` found: a draft model with the drafter's options, or a head or drafter as it was given.

    Args:
        given: the drafter that :func:`choose` was asked for.
        drafter: what it returned as the strategy.
        draft: what it returned as the draft model.
    """
    if isinstance(draft, str) and split(drafter)[0] == by_model():
        return draft + drafter.removeprefix(by_model())
    given = as_text(given)
    return given if isinstance(given, str) and given != PLAIN else draft or drafter


def recognise(location: str) -> str | None:
    """Return the drafter that runs the checkpoint at a location, as ``name,key=value``, or None if no plugin knows it.

    Raises:
        PluginError: a plugin's function raises an error, or returns something else than a text; or there is a head, and the
            distribution that runs heads is not installed.
    """
    for entry in registry().of("checkpoint"):
        try:
            found = entry.factory(location)
        except Exception as error:  # a third party's function may raise anything
            raise PluginError(f"{entry} raised {type(error).__name__} for {location!r}: {sentence(error)}") from error
        if found is not None and not isinstance(found, str):
            raise PluginError(f"{entry}: expected a drafter as name,key=value or None, got {literal(found)}")
        if found:
            return found
    why = registry().without(f"the drafter for {location!r}, the checkpoint of a head,", HEADS)
    if why and any(sign in configuration(location) for sign in SIGNS):
        raise PluginError(why)
    return None


def as_text(given: Any) -> Any:
    """Return a path as text, and anything else unchanged."""
    return os.fspath(given) if isinstance(given, os.PathLike) else given


def is_module(given: Any) -> bool:
    """Return whether an object is a torch module, which needs no import of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.nn.Module)


def check_target(target: Any) -> None:
    """Raise :class:`OptionError` if the target is neither a name nor a model."""
    model = target.strip() if isinstance(target, str) else is_module(target) and hasattr(target, "config")
    if not model and not is_model(target):
        raise OptionError(
            f"target: expected an alias, a directory, a hub id or a loaded transformers model, got {literal(target)}"
        )


def is_model(given: Any) -> bool:
    """Return whether an object that is no model of transformers has the members of a :class:`specframe.contracts.model.Model`.

    Raises:
        OptionError: it has some of them.
    """
    if not any(hasattr(owner, "kv_shapes") for owner in (type(given), given)):
        return False
    from specframe.plugins.protocols import require_members  # it knows protocols, and so torch

    require_members("model", given, "target", "a name or ")
    return True


def check_location(role: str, name: str) -> None:
    """Raise :class:`ModelError` if a name is a path without a model. A name that may be a hub id is not checked."""
    location = aliases.resolve(name)
    called = f"{role} {name!r}" + (f" ({location})" if location != name else "")
    require_model_folder(called, location)
    if location.startswith((".", "/", "~")) and not os.path.isdir(location):
        raise ModelError(f"{called} is not there: expected the directory of a saved model")
