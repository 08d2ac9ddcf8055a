"""A twin of a model: a module tree of its own with the model's parameters, buffers and hooks; and whether a model has changed.

A runner runs a twin. Attention, replaced forwards and evaluation mode are set in the twin once, so the model that it is of
stays as it is, whoever else runs it meanwhile. A parameter that is written to or put in another's place is the twin's, too, and
so is a hook. Modules, settings and adapters that change later are not: :func:`made_of` says when a new twin is needed.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, cast

import attrs
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from specframe.contracts.attention import Attend
from specframe.contracts.cache import ChunkWindow
from specframe.models.precision import plain_parts

NAME = "specframe"
"""The name of our attention function among transformers' attention implementations."""


@attrs.frozen(eq=False)
class CurrentForward:
    """The state of one forward."""

    attends: Attend | None = None
    """The attention that takes the place of the mask tensor, or None if there is a mask."""
    cache: Any = None
    """The :class:`specframe.model.attention.interface.StoreCache` around the KV store."""
    forwards: Mapping[torch.nn.Module, Callable[..., Any]] = attrs.Factory(dict)
    """The functions called in place of modules' own ``forward``."""
    functions: Mapping[tuple[Any, str], Callable[..., Any]] = attrs.Factory(dict)
    """The functions called in place of other attributes, by owner, a module of a twin or of Python, and name."""
    padding_free: Any = None
    """The :class:`specframe.model.padding_free.PaddingFree` of tokens in one row, or None if they are a rectangle."""
    chunks: Mapping[int, ChunkWindow] = attrs.Factory(dict)
    """The layers that attend in chunks, by their number: transformers' layers do not pass them to attention."""
    repeated: list[torch.Tensor] | None = None
    """The mask of the latest layer, and the same for the heads that share keys, or None outside of forwards."""
    attention: Callable[..., torch.Tensor] | None = None
    """What is called in place of our attention function, as where a forward is traced, or None for that function."""


CURRENT: ContextVar[CurrentForward] = ContextVar("specframe.model", default=CurrentForward())  # noqa: B039 - it is never written to
"""The forward under way in this thread; an empty state outside of forwards."""


class running:  # noqa: N801 - it is called as a function
    """Runs a forward of a twin inside the block.

    It is a class, since every forward has such a block, and a generator's takes longer.
    """

    def __init__(self, state: CurrentForward) -> None:
        self._state = state

    def __enter__(self) -> None:
        for module in self._state.forwards:
            redirect(module, "forward")
        for owner, name in self._state.functions:
            redirect(owner, name)
        self._before = CURRENT.set(self._state)

    def __exit__(self, *_: object) -> None:
        CURRENT.reset(self._before)


def redirect(owner: Any, name: str) -> None:
    """Have an attribute of a twin's module, or of a module of Python, call what the thread's forward has for it, or else itself."""
    usual = getattr(owner, name)
    if hasattr(usual, "redirects"):
        return

    if name == "forward":

        def called(*arguments: Any, **options: Any) -> Any:
            return CURRENT.get().forwards.get(owner, usual)(*arguments, **options)

    else:

        def called(*arguments: Any, **options: Any) -> Any:
            return CURRENT.get().functions.get((owner, name), usual)(*arguments, **options)

    called.redirects = usual  # type: ignore[attr-defined]
    vars(owner)[name] = called


def own(owner: Any, name: str = "forward") -> Any:
    """Return what an attribute is where no forward has something for it."""
    found = getattr(owner, name)
    return getattr(found, "redirects", found)


def made_of(model: torch.nn.Module) -> list[Any]:
    """Return what a twin is made of; where that has changed a new twin is needed.

    It is the model's modules with their classes, their settings and the configuration's, and the first weight's device and type.
    Parameters and buffers are the twin's own, whatever is put in their place. Modules are held: another one at the same address
    would look like the one before.
    """
    modules, first = [*model.modules()], next(model.parameters(), None)
    found = [modules, [*map(type, modules)], plain_settings(model), first is not None and (first.device, first.dtype)]
    config = getattr(model, "config", None)
    return found if config is None else [*found, attention_of(config), config.to_dict()]


def attention_of(config: Any) -> str | None:
    """Return the name of the attention that a configuration asks for."""
    return cast("str | None", getattr(config.get_text_config(), "_attn_implementation", None))


def sets_own_buffers(module: torch.nn.Module) -> bool:
    """Return whether a module writes to its buffers in its forward, as rotary factors do that depend on the longest position."""
    told = getattr(module, "rope_type", None)
    return bool({"dynamic", "longrope"}.intersection(told.values() if isinstance(told, dict) else [told]))


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """Return a twin of a model, in evaluation mode.

    A function that was put in place of a module's ``forward`` calls the twin's modules where it has the model's in its closure.
    """
    return cast(PreTrainedModel, _Twins().of(model))


class _Twins:
    """Makes the twins of one model's modules, each once."""

    def __init__(self) -> None:
        self._made: dict[int, torch.nn.Module] = {}
        self._functions: dict[int, types.FunctionType] = {}
        self._configs: dict[int, Any] = {}

    def of(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the twin of a module."""
        if (made := self._made.get(id(module))) is not None:
            return made
        if isinstance(module, torch.jit.ScriptModule):
            return module  # it is called as it is: nothing of it can be replaced
        made = self._made[id(module)] = object.__new__(type(module))
        held = vars(module)
        vars(made).update(held)
        vars(made)["training"] = False
        if sets_own_buffers(module):
            vars(made)["_buffers"] = {
                name: None if one is None else one.clone() for name, one in module._buffers.items()
            }
        vars(made)["_modules"] = {
            name: None if part is None else self.of(part) for name, part in module._modules.items()
        }
        for name, value in held.items():
            if name not in KEPT:
                vars(made)[name] = self._own(value)
        return made

    def _own(self, value: Any) -> Any:
        """Return what a twin's module has in place of an attribute of the model's."""
        if isinstance(value, torch.nn.Module):
            return self.of(value)
        if isinstance(value, PreTrainedConfig):
            return copy.deepcopy(value, self._configs)
        if isinstance(value, types.MethodType):
            whose, function = self._own(value.__self__), self._own(value.__func__)
            same = whose is value.__self__ and function is value.__func__
            return value if same else types.MethodType(function, whose)
        if isinstance(value, functools.partial):
            part = functools.partial(self._own(value.func), *map(self._own, value.args), **self._own(value.keywords))
            return self._told(part, value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if "__wrapped__" in getattr(value, "__dict__", ()):
            return self._callable(value)
        return self._held(value)

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        """Return a function whose closure has twins in place of modules; the same one where there are none."""
        cells = function.__closure__
        if not cells or id(function) in self._functions:
            return self._functions.get(id(function), function)
        self._functions[id(function)] = function  # it may be in its own closure
        found = [self._cell(cell) for cell in cells]
        if all(one is other for one, other in zip(found, cells, strict=True)):
            return function
        made = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(found)
        )
        made.__kwdefaults__ = function.__kwdefaults__
        self._functions[id(function)] = made
        return self._told(made, function)

    def _callable(self, value: Any) -> Any:
        """Return an object around a forward that calls the twin's modules; the same one where it has none."""
        made = {name: self._own(one) for name, one in vars(value).items()}
        if all(made[name] is one for name, one in vars(value).items()):
            return value
        other = object.__new__(type(value))  # accelerate's refuses to be copied
        vars(other).update(made)
        return other

    def _told(self, made: Any, value: Any) -> Any:
        """Return a function with another one's name and signature: a wrapper's signature is that of the function inside."""
        vars(made).update({name: self._own(one) for name, one in vars(value).items()})
        return made

    def _cell(self, cell: types.CellType) -> types.CellType:
        try:
            held = cell.cell_contents
        except ValueError:  # it holds nothing yet
            return cell
        made = self._own(held)
        return cell if made is held else types.CellType(made)

    def _held(self, value: Any) -> Any:
        """Return a list, tuple or dict with twins in place of modules; the same one where there are none."""
        if type(value) in (list, tuple):
            found = [self._own(one) for one in value]
            same = all(one is other for one, other in zip(found, value, strict=True))
            return value if same else type(value)(found)
        if type(value) is dict:
            made = {key: self._own(one) for key, one in value.items()}
            return value if all(made[key] is value[key] for key in value) else made
        return value


KEPT = frozenset({"_parameters", "_buffers", "_modules", "training"})
"""Attributes of a module that :class:`_Twins` sees to by themselves, or that both have: the same parameters, whatever becomes of
them."""


PLAIN = (str, int, float, bool, type(None), torch.dtype, torch.device)
"""Types of a module's attributes that say how it computes."""
SIMPLE = frozenset(PLAIN)
"""The same as a set: most attributes are of one of these types and of no class made from it."""
OWN = frozenset(vars(torch.nn.Module()))
"""Attributes of every module, which say something else or are looked at by themselves: a run is in no training mode."""


@attrs.frozen(eq=False)
class ModelState:
    """What keys, values and states of a prompt depend on apart from its tokens: a model's settings, its weights and its buffers.

    Of weights it has a checksum, since torch counts no write through ``Parameter.data``. That reads all of them once, in a
    quarter of the time of a forward of one token.
    """

    settings: list[Any]
    checksums: list[torch.Tensor]
    """One for each device. The host has not waited for them."""

    @classmethod
    def of(cls, module: torch.nn.Module) -> ModelState:
        """Return the state of a model as it is."""
        found, sums = plain_settings(module), dict[torch.device, list[torch.Tensor]]()
        for tensor in (*module.parameters(), *module.buffers()):
            for part in plain_parts(tensor.detach()):
                if part.device.type == "meta":
                    found.append(id(tensor))  # its numbers are elsewhere
                else:
                    sums.setdefault(part.device, []).append(row_sums(part))
        return cls(found, [checksum(torch.cat(some)) for some in sums.values()])

    def equals(self, other: ModelState) -> bool:
        """Return whether a model was the same; the host synchronises."""
        return all_equal([(self, other)])


def all_equal(pairs: Iterable[tuple[ModelState, ModelState]]) -> bool:
    """Return whether the models of all pairs were the same; the host synchronises once for each device."""
    differences = dict[torch.device, list[torch.Tensor]]()
    for one, other in pairs:
        mine_at, others_at = ([found.device for found in state.checksums] for state in (one, other))
        if one.settings != other.settings or mine_at != others_at:
            return False
        for mine, others in zip(one.checksums, other.checksums, strict=True):
            differences.setdefault(mine.device, []).append(mine != others)
    return not any(torch.stack(some).any().item() for some in differences.values())


def row_sums(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sums of a tensor's rows, whose bits are taken for whole numbers: a sum of floats would lose small changes."""
    rows = tensor.reshape(1) if tensor.dim() == 0 else tensor.contiguous()
    whole = all(one * rows.element_size() % 8 == 0 for one in (rows.shape[-1], rows.storage_offset()))
    return rows.view(torch.int64 if whole else torch.uint8).sum(-1, dtype=torch.int64).flatten()


def checksum(sums_N: torch.Tensor) -> torch.Tensor:
    """Return one number for these, in their order. It is another one where one of them is, since the factors are odd."""
    return (sums_N * torch.arange(1, 2 * len(sums_N), 2, device=sums_N.device)).sum()


def plain_settings(module: torch.nn.Module) -> list[Any]:
    """Return the settings of a model's modules, and its hooks.

    Adapters that are switched are settings of the modules that have them.
    """
    found = list[Any]()
    for one in module.modules():
        values = vars(one)
        for name, value in values.items():
            if name in OWN:
                continue
            if type(value) in SIMPLE:
                found += (name, value)
            elif is_plain(value):
                found += (name, repr(value))  # it may change in its place
        hooked = one._forward_hooks or one._forward_pre_hooks
        found.append([*(hooks_of(one) if hooked else ()), values.get("forward")])
    return found


def hooks_of(module: torch.nn.Module) -> list[Any]:
    """Return the hooks around a module's forward, but for those that have embeddings ask for gradients.

    transformers adds such a hook each time that checkpoints of activations are switched on, as trainers do after each generation.
    """
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return [one for one in hooks if "enable_input_require_grads.<locals>" not in getattr(one, "__qualname__", "")]


def is_plain(value: Any) -> bool:
    """Return whether an attribute is a number, a text or the like, or holds such alone."""
    if isinstance(value, dict):
        return all_plain(value) and all_plain(value.values())
    return all_plain(value) if isinstance(value, list | tuple | set | frozenset) else isinstance(value, PLAIN)


def all_plain(values: Iterable[Any]) -> bool:
    """Return whether all of several values are plain."""
    return all(is_plain(value) for value in values)
