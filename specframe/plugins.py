"""Discovery of plugins over the entry-point group ``specframe``, and the registry of what they offer."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import attrs
import pluggy

from specframe import hookspecs
from specframe.errors import OptionError, PluginError, UnknownNameError
from specframe.values import check_annotated

GROUP = "specframe"
LIMIT_VARIABLE = "SPECFRAME_PLUGINS"
"""Environment variable: when set, only the entry points it names (comma separated) are loaded."""

ROLES: Mapping[str, str] = {
    "drafter": "specframe_register_drafters",
    "verifier": "specframe_register_verifiers",
    "acceptance rule": "specframe_register_acceptance_rules",
    "alignment": "specframe_register_alignments",
    "scheduler": "specframe_register_schedulers",
    "KV backend": "specframe_register_kv_backends",
    "draft-length policy": "specframe_register_draft_length_policies",
}
"""The seven roles, by the name errors use, and the hook each is registered through."""

OTHERS: Mapping[str, str] = {"observer": "specframe_register_observers", "command": "specframe_register_commands"}


class Register(Protocol):
    """What a register hook is handed: ``register(name, factory)``."""

    def __call__(self, name: str, factory: Callable[..., Any] | str) -> None: ...  # noqa: D102 - the class says it


class RegisterModels(Protocol):
    """What the model hook is handed: ``register(alias, location, target=None)``."""

    def __call__(self, alias: str, location: str, target: str | None = None) -> None: ...  # noqa: D102


@attrs.frozen
class Entry:
    """One registered name: what makes it and which distribution offers it."""

    kind: str
    name: str
    reference: Callable[..., Any] | str
    distribution: str

    @property
    def factory(self) -> Callable[..., Any]:
        """Return the factory, importing it when it was given as ``"package.module:Name"``."""
        if not isinstance(self.reference, str):
            return self.reference
        module, _, attribute = self.reference.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except Exception as error:  # a stranger's module may raise anything
            raise PluginError(
                f"{self.kind} {self.name!r} of {self.distribution} refers to {self.reference!r}, which does not import: {error}"
            ) from error

    @property
    def summary(self) -> str:
        """The first line of the factory's docstring."""
        return (self.factory.__doc__ or "").strip().partition("\n")[0]


@attrs.frozen
class ModelAlias:
    """A short name for a model's location, and the target it drafts for, if it does."""

    alias: str
    location: str
    target: str | None
    distribution: str


@attrs.define
class Registry:
    """Everything the loaded plugins offer, by kind and name, and what failed to load."""

    entries: dict[str, dict[str, Entry]] = attrs.Factory(dict)
    models: dict[str, ModelAlias] = attrs.Factory(dict)
    failures: dict[str, str] = attrs.Factory(dict)
    distributions: dict[str, str] = attrs.Factory(dict)

    def names(self, kind: str) -> list[str]:
        """Return the registered names of a kind, sorted."""
        return sorted(self.entries.get(kind, {}))

    def entry(self, kind: str, name: str) -> Entry:
        """Return one entry; raise :class:`UnknownNameError` with the known names and the nearest."""
        try:
            return self.entries[kind][name]
        except KeyError:
            raise UnknownNameError(kind, name, self.names(kind)) from None

    def make(self, kind: str, specification: str) -> Any:
        """Return a new strategy from ``name`` or ``name,key=value,...``."""
        name, options = parse_specification(specification)
        entry = self.entry(kind, name)
        try:
            check_annotated(entry.factory, options)
            return entry.factory(**options)
        except TypeError as error:
            known = ", ".join(option_names(entry.factory)) or "none"
            if set(options) <= set(option_names(entry.factory)):
                raise OptionError(f"{kind} {name!r} could not be made from {specification!r}: {error}") from error
            unknown = ", ".join(sorted(set(options) - set(option_names(entry.factory))))
            raise OptionError(f"{kind} {name!r} has no option {unknown!r}: its options are {known}") from None
        except ValueError as error:
            raise OptionError(f"{kind} {name!r}: {error}") from error

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over all entries, by kind and name."""
        for kind in self.entries:
            for name in self.names(kind):
                yield self.entries[kind][name]


def parse_specification(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``name,key=value,...`` into the name and its options; numbers and booleans become such."""
    name, *pairs = (part.strip() for part in text.split(","))
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise OptionError(f"option {pair!r} of {name!r}: expected key=value, as in {name + ',key=value'!r}")
        if (key := key.replace("-", "_")) in options:
            raise OptionError(f"option {key!r} of {name!r} is given twice: expected one value, got {text!r}")
        options[key] = parse_value(value)
    return name, options


def parse_value(text: str) -> bool | int | float | str:
    """Read an option's value: true/false, a number, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def option_names(factory: Callable[..., Any]) -> list[str]:
    """Return the keyword options a factory takes."""
    import inspect

    parameters = inspect.signature(factory).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def discover() -> Registry:
    """Load every plugin of the entry-point group and return what they offer.

    A plugin that does not import is recorded in ``failures`` under its distribution and the others still load; two plugins
    of one name raise :class:`PluginError` naming both distributions.
    """
    registry = Registry()
    for distribution, point in entry_points():
        try:
            offer(registry, point.load(), distribution)
        except PluginError:
            raise
        except Exception as error:  # a stranger's module may raise anything
            registry.failures[distribution] = f"plugin {point.name!r} ({point.value}): {type(error).__name__}: {error}"
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
    manager.hook.specframe_register_models(register=functools.partial(add_model, registry, distribution))


def add_entry(registry: Registry, distribution: str, kind: str, name: str, factory: Callable[..., Any] | str) -> None:
    """Put one entry into the registry; a name already taken is an error naming both distributions."""
    taken = registry.entries.setdefault(kind, {}).get(name)
    if taken is not None:
        raise PluginError(
            f"{kind} {name!r} is offered by both {taken.distribution} and {distribution}: uninstall one of them"
        )
    registry.entries[kind][name] = Entry(kind, name, factory, distribution)


def add_model(registry: Registry, distribution: str, alias: str, location: str, target: str | None = None) -> None:
    """Put one model alias into the registry."""
    taken = registry.models.get(alias)
    if taken is not None:
        raise PluginError(
            f"model {alias!r} is offered by both {taken.distribution} and {distribution}: uninstall one of them"
        )
    registry.models[alias] = ModelAlias(alias, location, target, distribution)


def entry_points() -> list[tuple[str, importlib.metadata.EntryPoint]]:
    """Return (distribution, entry point) pairs in a fixed order, narrowed by ``SPECFRAME_PLUGINS``."""
    wanted = os.environ.get(LIMIT_VARIABLE)
    names = None if wanted is None else {name.strip() for name in wanted.split(",") if name.strip()}
    found: dict[tuple[str, str], importlib.metadata.EntryPoint] = {}
    for distribution in importlib.metadata.distributions():
        for point in distribution.entry_points:
            if point.group == GROUP and (names is None or point.name in names):
                found.setdefault((distribution.metadata["Name"], point.name), point)
    return [(distribution, found[distribution, name]) for distribution, name in sorted(found)]


@functools.cache
def registry() -> Registry:
    """Return this process's registry, discovered on first use; ``registry.cache_clear()`` makes it look again."""
    found = discover()
    for distribution, fault in found.failures.items():
        print(f"specframe: {distribution} was skipped: {fault}", file=sys.stderr)
    return found
