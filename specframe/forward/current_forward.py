"""The current forward of each thread, and changes to a model that several threads may use.

The state of a forward is in a context variable: threads do not see each other's. A model's configuration and modules are seen by
all. What a forward changes of them says the same for everybody, is made by the first forward that needs it and undone by the last;
whose forward it is decides the context variable.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import attrs
import torch

from specframe.contracts.attention import Attend
from specframe.contracts.cache import Chunk

NAME = "specframe"
"""The name of our attention function among transformers' attention implementations."""

HELD = {"_attn_implementation": "_attn_implementation_internal"}
"""The entries of a configuration's ``__dict__`` that hold properties. Reading and writing these goes through some fifty calls of
transformers, in every round."""


@attrs.frozen(eq=False)
class CurrentForward:
    """The state of one forward."""

    attends: Attend | None = None
    """The attention that takes the place of the mask tensor; None: there is a mask."""
    cache: Any = None
    """The :class:`specframe.forward.cache_views.StoreCache` around the KV store."""
    forwards: Mapping[torch.nn.Module, Callable[..., Any]] = attrs.Factory(dict)
    """The functions called in the place of modules' own ``forward``."""
    functions: Mapping[tuple[Any, str], Callable[..., Any]] = attrs.Factory(dict)
    """The functions called in the place of other attributes, by owner, a module of torch or of Python, and name."""
    unpadded: Any = None
    """The :class:`specframe.forward.unpadded.Unpadded` of tokens laid in one row; None: they are a rectangle."""
    chunks: Mapping[int, Chunk] = attrs.Factory(dict)
    """The layers that attend in chunks, by their number: transformers' layers do not tell attention of them."""
    repeated: list[torch.Tensor] | None = None
    """The mask of the latest layer, and the same for the heads that share keys; None: outside of forwards."""
    masks: Mapping[int, torch.Tensor] = attrs.Factory(dict)
    """The masks that compiled layers attend under, by the address of the tensor that the layers are given in the place of each."""


CURRENT: ContextVar[CurrentForward] = ContextVar("specframe.forward", default=CurrentForward())  # noqa: B039 - it is never written to
"""The forward under way in this thread; an empty state outside of forwards."""


@attrs.define
class _Change:
    """An attribute of an object that others may use, changed for as long as somebody needs it."""

    own: Any
    """The object's own value."""
    inherited: bool
    """Whether that is its class's."""
    users: int = 0


_lock = threading.RLock()
_changing = threading.Condition(_lock)
"""Where forwards wait for one another. What does not wait takes the lock itself, whose methods are not Python."""
_changes: dict[tuple[int, str], _Change] = {}
_users: dict[int, int] = {}
"""Forwards under way by the id of their configuration."""
_reserved: set[int] = set()
"""Ids of the configurations that somebody has, or waits to have, alone."""


def own_value(owner: Any, name: str) -> Any:
    """Return the value of an attribute that an object has outside of forwards."""
    with _lock:
        return _own(owner, name)


def own_values(owners: Iterable[Any], name: str) -> list[Any]:
    """Return the values of an attribute that objects have outside of forwards."""
    with _lock:
        return [_own(owner, name) for owner in owners]


def _own(owner: Any, name: str) -> Any:
    change = _changes.get((id(owner), name))
    return read_value(owner, name) if change is None else change.own


class Changed:
    """Has an attribute of objects changed inside the block, in every thread, and for as long as another thread needs the same.

    It is a class, since every round has such a block, and a generator's takes longer.

    Args:
        owners: the objects.
        name: of the attribute.
        value: returns the value for an object, from its own one.
    """

    def __init__(self, owners: list[Any], name: str, value: Callable[[Any], Any]) -> None:
        self._owners, self._name, self._value = owners, name, value

    def __enter__(self) -> None:
        with _lock:
            for owner in self._owners:
                _change(owner, self._name, self._value)

    def __exit__(self, *_: object) -> None:
        with _lock:
            for owner in self._owners:
                _restore(owner, self._name)


def read_value(owner: Any, name: str) -> Any:
    """Return the value of an attribute, as it is now."""
    held, key = object.__getattribute__(owner, "__dict__"), HELD.get(name)
    return held[key] if key in held else getattr(owner, name)


def write_value(owner: Any, name: str, value: Any) -> None:
    """Set an attribute, as ``setattr`` does."""
    held, key = object.__getattribute__(owner, "__dict__"), HELD.get(name)
    if key in held and not has_parts(type(owner)):  # type: ignore[arg-type]  # these are written to as well
        held[key] = value
    else:
        setattr(owner, name, value)


@functools.cache
def has_parts(kind: Any) -> bool:
    """Return whether configurations of a class have others inside."""
    return bool(kind.sub_configs)


def _change(owner: Any, name: str, value: Callable[[Any], Any]) -> None:
    change = _changes.get((id(owner), name))
    if change is None:
        inherited = name not in HELD and name not in vars(owner) and not is_property(owner, name)
        change = _changes[id(owner), name] = _Change(read_value(owner, name), inherited)
        write_value(owner, name, value(owner))
    change.users += 1


def is_property(owner: Any, name: str) -> bool:
    """Return whether an attribute is a property."""
    return isinstance(getattr(type(owner), name, None), property)


def _restore(owner: Any, name: str) -> None:
    change = _changes[id(owner), name]
    change.users -= 1
    if change.users:
        return
    del _changes[id(owner), name]
    if change.inherited:
        delattr(owner, name)
    else:
        write_value(owner, name, change.own)


@contextlib.contextmanager
def shared_config(config: Any) -> Iterator[None]:
    """Keep a model's configuration from being had :func:`exclusive_config` inside the block."""
    with _lock:
        _use(config)
    try:
        yield
    finally:
        with _lock:
            _leave(config)


def _use(config: Any) -> None:
    """Count a user of a configuration, after waiting for whoever has it alone."""
    key = id(config)
    if key in _reserved:
        _changing.wait_for(lambda: key not in _reserved)
    _users[key] = _users.get(key, 0) + 1


def _leave(config: Any) -> None:
    """Count a user of a configuration less."""
    key = id(config)
    _users[key] -= 1
    if not _users[key]:
        del _users[key]
        if key in _reserved:
            _changing.notify_all()


@contextlib.contextmanager
def exclusive_config(config: Any) -> Iterator[None]:
    """Have a model's configuration alone inside the block, after the forwards under way: it may be changed at will."""
    key = id(config)
    with _changing:
        _changing.wait_for(lambda: key not in _reserved)
        _reserved.add(key)
        _changing.wait_for(lambda: key not in _users)
    try:
        yield
    finally:
        with _changing:
            _reserved.remove(key)
            _changing.notify_all()


def by_interface(model: torch.nn.Module) -> bool:
    """Return whether a model attends by transformers' interface, which finds attention functions by their names.

    Falcon does not: it compares the name with ``sdpa``, and under another name expects another kind of mask.
    """
    forwards = (inspect.unwrap(type(one).forward) for one in model.modules())
    return any("ALL_ATTENTION_FUNCTIONS" in getattr(one, "__globals__", ()) for one in forwards)


def use_interface(configs: Iterable[Any]) -> contextlib.AbstractContextManager[None]:
    """Have models attend by the function called :data:`NAME` inside the block, those of the configurations set to ``sdpa``.

    The configurations are of models that attend :func:`by_interface`.

    Every forward sees to that itself, in :func:`running`. Around several forwards the change is made once: transformers takes long
    to write to a configuration.
    """
    sdpa = [config for config in configs if own_value(config, "_attn_implementation") == "sdpa"]
    return Changed(sdpa, "_attn_implementation", _ours)


class running:  # noqa: N801 - it is called as a function
    """Runs a forward of the model of a configuration inside the block, which nobody has :func:`exclusive_config` meanwhile.

    A model set to ``sdpa`` attends by the function called :data:`NAME`; others are left alone. It is a class, since every forward
    has such a block, and a generator's takes longer.

    Args:
        config: the configuration of the language model.
        state: of the forward.
        interface: whether the model attends :func:`by_interface`.
    """

    def __init__(self, config: Any, state: CurrentForward, interface: bool = True) -> None:
        self._config, self._state, self._interface = config, state, interface

    def __enter__(self) -> None:
        config, modules = self._config, self._state.forwards
        with _lock:  # once for all changes
            _use(config)
            self._sdpa = self._interface and _own(config, "_attn_implementation") == "sdpa"
            if self._sdpa:
                _change(config, "_attn_implementation", _ours)
            for module in modules:
                _change(module, "forward", _by_thread)
            for owner, name in self._state.functions:
                _change(owner, name, functools.partial(_function_by_thread, name))
        self._before = CURRENT.set(self._state)

    def __exit__(self, *_: object) -> None:
        CURRENT.reset(self._before)
        with _lock:
            for module in self._state.forwards:
                _restore(module, "forward")
            for owner, name in self._state.functions:
                _restore(owner, name)
            if self._sdpa:
                _restore(self._config, "_attn_implementation")
            _leave(self._config)


def _ours(config: Any) -> str:
    """Return the name of our attention function for a configuration that is set to another."""
    return NAME


def _by_thread(module: torch.nn.Module) -> Callable[..., Any]:
    """Return a ``forward`` for a module that calls the function which its thread's forward has for it, or else the module's own."""
    usual = module.forward

    def forward(*arguments: Any, **options: Any) -> Any:
        return CURRENT.get().forwards.get(module, usual)(*arguments, **options)

    return forward


def _function_by_thread(name: str, owner: Any) -> Callable[..., Any]:
    """Return a function for an attribute that calls the one which its thread's forward has for it, or else the owner's own."""
    usual = getattr(owner, name)

    def function(*arguments: Any, **options: Any) -> Any:
        return CURRENT.get().functions.get((owner, name), usual)(*arguments, **options)

    return function
