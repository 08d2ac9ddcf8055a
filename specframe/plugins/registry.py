"""Discovery of plugins over the entry-point group ``specframe``, and the registry of what they offer."""

from __future__ import annotations

import csv
import functools
import importlib.metadata
import os
import tomllib
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import attrs
import pluggy
from packaging.utils import canonicalize_name

from specframe.errors import (
    OptionError,
    PluginError,
    SpecframeError,
    SpecframeWarning,
    UnknownNameError,
    literal,
    sentence,
)
from specframe.plugins import builtin, hookspecs, missing_packages, versions
from specframe.plugins.entries import OTHERS, PURPOSES, ROLES, Default, Entry, ModelAlias, the_one
from specframe.plugins.traits import REQUIRED
from specframe.value_checks import check_annotated, parse_value, unwrap_guards

GROUP = OWN = "specframe"
"""The group of entry points, and the distribution whose own plugin is always loaded."""
LIMIT_VARIABLE = "SPECFRAME_PLUGINS"
"""Environment variable: when set, only the entry points it names (comma separated) are loaded."""


@attrs.define
class Registry:
    """Everything the loaded plugins offer, by kind and name, and what failed to load. A name of several offers cannot be used."""

    entries: dict[str, dict[str, list[Entry]]] = attrs.Factory(dict)
    models: dict[str, list[ModelAlias]] = attrs.Factory(dict)
    defaults: dict[str, list[Default]] = attrs.Factory(dict)
    failures: dict[str, str] = attrs.Factory(dict)
    distributions: dict[str, str] = attrs.Factory(dict)

    def names(self, kind: str) -> list[str]:
        """Return the registered names of a kind, sorted."""
        return sorted(self.entries.get(kind, {}))

    def of(self, kind: str) -> list[Entry]:
        """Return the entries of a kind, by name."""
        return [entry for name in self.names(kind) for entry in self.entries[kind][name]]

    def entry(self, kind: str, name: str) -> Entry:
        """Return one entry.

        Raises:
            UnknownNameError: nobody offers the name; with the known names and the nearest.
            PluginError: several offer it, or the plugin of that name failed to load or is not installed.
        """
        if name not in self.entries.get(kind, {}):
            if excuse := self.excuse(name) or self.lack(kind, name):
                raise PluginError(excuse)
            raise UnknownNameError(kind, name, self.names(kind))
        return the_one(self.entries[kind][name])

    def entry_of(self, kind: str, strategy: Any) -> Entry | None:
        """Return the entry that a strategy's class is registered by, the first by name, or None if it is not registered."""
        made = type(unwrap_guards(strategy))
        references = made, f"{made.__module__}:{made.__qualname__}"
        return next((entry for entry in self.of(kind) if entry.reference in references), None)

    def default(self, purpose: str) -> str:
        """Return the specification of the strategy, or the alias of the model, that is used for a purpose if none is named.

        Raises:
            PluginError: no plugin registers a default for the purpose, or several plugins do.
        """
        offers, kind = self.defaults.get(purpose, []), PURPOSES[purpose]
        if len(offers) == 1:
            return offers[0].specification
        called = kind if kind == purpose else f"{kind} for {purpose!r}"
        if offers:
            told = " and ".join(map(str, offers))
            raise PluginError(f"the default {called} is registered as {told}: name one of them, or uninstall one")
        raise PluginError(
            f"no plugin that is loaded offers a default {called}: name one, or install a plugin that does, such as specframe-std"
        )

    def excuse(self, name: str) -> str | None:
        """Return why the plugin of a name offers nothing (it failed to load, or is not installed), or None."""
        for distribution, fault in self.failures.items():
            if canonicalize_name(name) == canonicalize_name(distribution) or f"plugin {name!r} (" in fault:
                return f"{name!r} cannot be used: {distribution} was skipped: {fault}"
        if is_plugin_folder(Path(name)):
            return f"{name!r} is the folder of a plugin that is not installed: pip install -e {name}"
        return None

    def lack(self, kind: str, name: str) -> str | None:
        """Return why a name of one of specframe's other distributions is not there, or None if it is of none."""
        return self.without(f"{kind} {name!r}", missing_packages.NAMES.get(kind, {}).get(name))

    def without(self, what: str, distribution: str | None) -> str | None:
        """Return why a part of a distribution is not there, or None if the distribution is loaded as a whole, or is None."""
        fault = self.failures.get(distribution or "")
        if distribution is None or (distribution in self.distributions and not fault):
            return None
        part = f"{what} is part of {distribution}"
        if fault:
            return f"{part}, which was skipped: {fault}"
        if missing_packages.is_installed(distribution):
            return f"{part}, which {LIMIT_VARIABLE} leaves out"
        return f"{part}, which is not installed: pip install {distribution}"

    def fail(self, distribution: str, fault: str) -> None:
        """Record a fault of a distribution."""
        known = self.failures.get(distribution)
        self.failures[distribution] = f"{known}; {fault}" if known else fault

    def make(self, kind: str, specification: str) -> Any:
        """Return a new strategy from ``name`` or ``name,key=value,...``."""
        try:
            name, options = parse_specification(specification)
        except OptionError as error:
            raise OptionError(f"{kind} {specification!r}: {error}") from None
        entry = self.entry(kind, name)
        factory = entry.factory
        check_options(entry, options)
        try:
            check_annotated(factory, options)
            return factory(**options)
        except TypeError as error:
            raise OptionError(f"{kind} {name!r} could not be made from {specification!r}: {error}") from error
        except ValueError as error:
            raise OptionError(f"{kind} {name!r}: {error}") from error
        except SpecframeError:
            raise
        except (Exception, SystemExit) as error:  # a plugin's constructor may raise any error
            raise PluginError(f"{entry} could not be made: {type(error).__name__}: {sentence(error)}") from error

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over all entries: roles first, then other kinds, each by name."""
        for kind in (*ROLES, *OTHERS):
            yield from self.of(kind)


def check_options(entry: Entry, given: Collection[str]) -> None:
    """Raise :class:`OptionError` for an option that a strategy does not have, or that it lacks; the error lists options."""
    traits = entry.traits
    unknown = ", ".join(sorted(set(given) - set(traits.options)))
    if unknown and not traits.open:
        listing = f"its options are {', '.join(traits.options)}" if traits.options else "it takes none"
        raise OptionError(f"{entry.kind} {entry.name!r} has no option {unknown!r}: {listing}")
    if missing := [name for name, default in traits.options.items() if default is REQUIRED and name not in given]:
        wanted = ",".join(f"{name}=..." for name in missing)
        raise OptionError(f"{entry.kind} {entry.name!r}: expected '{entry.name},{wanted}', got no {', '.join(missing)}")


def is_plugin_folder(folder: Path) -> bool:
    """Return whether a folder holds the source of a plugin: a project file with entry points of the group."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        return bool(project["project"]["entry-points"][GROUP])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def parse_specification(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``name,key=value,...`` into the name and its options; numbers and booleans become such.

    A part with a comma of its own is in double quotes, as in CSV: ``name,"key=a,b"``, see :func:`quote`.
    """
    name, *pairs = (part.strip() for part in parts_of(text))
    if not name:
        raise OptionError(f"expected a name before its options, as in 'name,key=value', got {text!r}")
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise OptionError(f"option {pair!r} of {name!r}: expected key=value, as in {name + ',key=value'!r}")
        if (key := key.replace("-", "_")) in options:
            raise OptionError(f"option {key!r} of {name!r} is given twice: expected one value, got {text!r}")
        options[key] = parse_value(value)
    return name, options


def parts_of(text: str) -> list[str]:
    """Return the parts of a specification; raise :class:`OptionError` where a quotation mark has no partner."""
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise OptionError(
            f"expected a part with a comma in double quotes, as in 'name,\"key=a,b\"', got {literal(text)}: {sentence(error)}"
        ) from error


def quote(part: str) -> str:
    """Return a part of a specification as :func:`parse_specification` reads it again."""
    return '"' + part.replace('"', '""') + '"' if "," in part or '"' in part else part


def discover() -> Registry:
    """Load specframe's own plugin and every plugin of the entry-point group, and return what they offer, with their
    ``failures``."""
    registry = Registry()
    offer(registry, builtin, OWN)
    for distribution, point in entry_points():
        if point.dist is not None and (why := versions.unfit(point.dist)):
            registry.fail(distribution, f"plugin {point.name!r} ({point.value}): {why}")
            continue
        try:
            offer(registry, point.load(), distribution)
        except (Exception, SystemExit) as error:  # a third party's module may raise anything
            registry.fail(distribution, f"plugin {point.name!r} ({point.value}): {type(error).__name__}: {error}")
        else:
            registry.distributions[distribution] = point.value
    return registry


def offer(registry: Registry, plugin: Any, distribution: str) -> None:
    """Let one plugin register what it has; ``plugin`` is a module or object with hook implementations."""
    manager = pluggy.PluginManager("specframe")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()
    for kind, hook in {**ROLES, **OTHERS}.items():
        getattr(manager.hook, hook)(register=functools.partial(add_entry, registry, distribution, kind))
    manager.hook.specframe_register_defaults(register=functools.partial(add_default, registry, distribution))
    manager.hook.specframe_register_models(register=functools.partial(add_model, registry, distribution))


def add_entry(
    registry: Registry,
    distribution: str,
    kind: str,
    name: str,
    factory: Callable[..., Any] | str,
) -> None:
    """Put one entry into the registry. An equal entry is registered once; a name that is no text is a failure."""
    if not isinstance(name, str) or not name:
        registry.fail(distribution, f"{kind} {literal(name)}: expected a name, a text")
        return
    known = registry.entries.setdefault(kind, {}).setdefault(name, [])
    if (entry := Entry(kind, name, factory, distribution)) not in known:
        known.append(entry)


def add_default(registry: Registry, distribution: str, purpose: str, specification: str) -> None:
    """Put one default into the registry; an unknown purpose, or a specification that is no text, is a failure."""
    if purpose not in PURPOSES:
        registry.fail(
            distribution, f"default {literal(specification)}: {UnknownNameError('purpose', purpose, PURPOSES)}"
        )
    elif not isinstance(specification, str):
        registry.fail(distribution, f"default for {purpose}: expected a name, a text, got {literal(specification)}")
    elif (one := Default(specification, distribution)) not in (offers := registry.defaults.setdefault(purpose, [])):
        offers.append(one)


def add_model(registry: Registry, distribution: str, alias: str, location: str, target: str | None = None) -> None:
    """Put one model alias into the registry; one that is no text is a failure."""
    given = {"alias": alias, "location": location, "target": target}
    for what, value in given.items():
        if not isinstance(value, str) and not (what == "target" and value is None):
            registry.fail(
                distribution, f"model {literal(alias)}: expected its {what} to be a text, got {literal(value)}"
            )
            return
    offers = registry.models.setdefault(alias, [])
    model = ModelAlias(alias, location, target, distribution)
    if model not in offers:
        offers.append(model)


def entry_points() -> list[tuple[str, importlib.metadata.EntryPoint]]:
    """Return (distribution, entry point) pairs in a fixed order, narrowed by ``SPECFRAME_PLUGINS``.

    Raises:
        PluginError: the variable names a plugin that is not installed.
    """
    wanted = os.environ.get(LIMIT_VARIABLE)
    names = None if wanted is None else {name.strip() for name in wanted.split(",") if name.strip()}
    found: dict[tuple[str, str], importlib.metadata.EntryPoint] = {}
    installed: set[str] = set()
    for distribution in importlib.metadata.distributions():
        for point in distribution.entry_points:
            if point.group != GROUP:
                continue
            installed.add(point.name)
            if names is None or point.name in names:
                found.setdefault((distribution.metadata["Name"] or "a package without a name", point.name), point)
    if missing := sorted((names or set()) - installed):
        raise PluginError(f"{LIMIT_VARIABLE}: {UnknownNameError('plugin', missing[0], installed)}")
    return [(distribution, found[distribution, name]) for distribution, name in sorted(found)]


@functools.cache
def registry() -> Registry:
    """Return this process's registry, discovered on first use; ``registry.cache_clear()`` makes it look again. A
    :class:`SpecframeWarning` names each distribution that was skipped, in whole or in part, and why."""
    found = discover()
    for distribution, fault in found.failures.items():
        part = "part of " if distribution in found.distributions else ""
        warnings.warn(f"{part}{distribution} was skipped: {fault}", SpecframeWarning, stacklevel=2)
    return found
