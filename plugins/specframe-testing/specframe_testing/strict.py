"""Strict stand-ins: an object as its protocol declares it, and no member more.

A strategy that works on stand-ins uses nothing that a third party's object of the protocol would lack, and of the core's own
classes nothing but what strategies may use.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

import torch

from specframe.contracts import cache, roles
from specframe.contracts.attention import AttentionBackend
from specframe.engine.pool import Pool
from specframe.model.cached import CachedModel
from specframe.model.run import Run
from specframe.observe.watch import Watch
from specframe.plugins.compose import Composition
from specframe.plugins.protocols import OFFERED, PROTOCOLS

OWN = "specframe.contracts."
"""The package of the protocols."""

OF_THE_CORE: Mapping[type, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        Run: "rows capacity seed steady draft_model target_tokenizer draft_tokenizer runner kv target rule watch new_shapes "
        "caches open_cache close_cache",
        CachedModel: "runner layout store capture follow place reserve forget feed extend tokens_at_once read commit",
        Pool: "captures live rows latest waiting unfinished admit length batch",
        Watch: "stage forward fed",
    }.items()
}
"""The classes of the core whose objects strategies are handed, and the members that they may use, as docs/stability.md has them."""

HANDED = {one.__name__: one for one in OF_THE_CORE}

MORE: dict[type, Mapping[str, type]] = {PROTOCOLS[kind]: words for kind, words in OFFERED.items()}
"""Protocols of which objects that offer a word have a larger one."""

FIELDS: dict[str, type] = {
    "drafter": roles.Drafter,
    "verifier": roles.Verifier,
    "rule": roles.AcceptanceRule,
    "alignment": roles.Alignment,
    "scheduler": roles.Scheduler,
    "kv": cache.KVBackend,
    "policy": roles.BudgetPolicy,
}
"""The protocol of each strategy of a composition."""


class UndeclaredError(AssertionError):
    """A member was used that the protocol does not declare."""


class Strict:
    """A stand-in for an object. Objects that its members are given, or return, have stand-ins as their annotations say.

    Args:
        inner: the object.
        protocol: declares its members.
        used: takes the protocol and the name of each member that is used.

    Raises:
        UndeclaredError: at the use of a member that the object has and the protocol does not declare.
    """

    def __init__(self, inner: Any, protocol: type, used: set[tuple[str, str]]) -> None:
        vars(self).update(__wrapped__=inner, _protocol=protocol, _used=used)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self.__wrapped__, name)
        self._require(name)
        kinds = types_of(self._protocol, name)
        if not inspect.isroutine(value):
            return self._standing(value, kinds.get("return"))
        given = [kinds[one] for one in kinds if one != "return"]

        def call(*arguments: Any, **options: Any) -> Any:
            stood = [self._standing(one, kind) for one, kind in zip(arguments, given, strict=False)]
            named = {name: self._standing(one, kinds.get(name)) for name, one in options.items()}
            return self._standing(value(*stood, *arguments[len(stood) :], **named), kinds.get("return"))

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        self._require(name)
        setattr(self.__wrapped__, name, value)

    def __eq__(self, other: object) -> bool:
        return self.__wrapped__ is getattr(other, "__wrapped__", other)

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __str__(self) -> str:
        return str(self.__wrapped__)

    def _require(self, name: str) -> None:
        if name not in declared(self._protocol):
            raise UndeclaredError(f"{self._protocol.__name__} declares no {name!r}")
        self._used.add((declaring(self._protocol, name).__name__, name))

    def _standing(self, value: Any, annotation: Any) -> Any:
        """Return the stand-in for a value of an annotation; lists, models of torch and values of no protocol as they are."""
        if typing.get_origin(annotation) is Mapping:
            return {key: self._standing(one, typing.get_args(annotation)[1]) for key, one in value.items()}
        protocol = protocol_in(annotation)
        if protocol is None or value is None or isinstance(value, Strict | list | tuple | torch.nn.Module):
            return value
        return strict(value, protocol, self._used)


def strict(given: Any, protocol: type, used: set[tuple[str, str]] | None = None) -> Any:
    """Return the stand-in for an object of a protocol; see :class:`Strict`."""
    larger = (one for word, one in MORE.get(protocol, {}).items() if word in given.offers)
    return Strict(given, joined(*larger) or protocol, set() if used is None else used)


def strictly(use: Composition, used: set[tuple[str, str]]) -> Composition:
    """Return a composition of stand-ins, which hand their strategies stand-ins of runs, caches, models, stores and pools."""
    parts = {name: strict(getattr(use, name), protocol, used) for name, protocol in FIELDS.items()}
    several = use.attention if isinstance(use.attention, tuple) else (use.attention,)
    stood = tuple(strict(one, AttentionBackend, used) for one in several)
    return Composition(
        **parts, attention=stood if several is use.attention else stood[0], names=use.names, numerics=use.numerics
    )


@functools.cache
def joined(*protocols: type) -> type | None:
    """Return the one of several protocols, or one that extends them all, or None."""
    return (
        type(" and ".join(one.__name__ for one in protocols), protocols, {})
        if len(protocols) > 1
        else next(iter(protocols), None)
    )


@functools.cache
def declaring(protocol: type, name: str) -> type:
    """Return the protocol, of this one and those it extends, that declares a member."""
    if protocol in OF_THE_CORE:
        return protocol
    return next(one for one in protocol.__mro__ if name in vars(one) or name in vars(one).get("__annotations__", {}))


@functools.cache
def declared(protocol: type) -> frozenset[str]:
    """Return the names that a protocol and those it extends declare."""
    if protocol in OF_THE_CORE:
        return OF_THE_CORE[protocol]
    own = [one for one in protocol.__mro__ if one.__module__.startswith(OWN)]
    names = {name for one in own for name in (*vars(one), *vars(one).get("__annotations__", {}))}
    return frozenset(name for name in names if not name.startswith("_"))


@functools.cache
def types_of(protocol: type, name: str) -> dict[str, Any]:
    """Return the types of a declared member's arguments, in order, and of what it returns or is."""
    for one in protocol.__mro__:
        value = vars(one).get(name)
        function = value.fget if isinstance(value, property) else value
        if inspect.isfunction(function):
            return typing.get_type_hints(function, localns=HANDED)
        if name in vars(one).get("__annotations__", {}):
            return {"return": typing.get_type_hints(one)[name]}
    return {}


def protocol_in(annotation: Any) -> type | None:
    """Return the protocol of the contracts, or the class of the core, that an annotation names, if any."""
    if annotation in HANDED.values():
        return annotation
    if (
        isinstance(annotation, type)
        and getattr(annotation, "_is_protocol", False)
        and annotation.__module__.startswith(OWN)
    ):
        return annotation
    if not isinstance(annotation, types.UnionType):
        return None
    return next(filter(None, map(protocol_in, typing.get_args(annotation))), None)
