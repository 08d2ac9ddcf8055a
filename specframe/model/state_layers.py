"""The layers of a model that keep a state, found by kinds of state that plugins register."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import attrs
import torch

from specframe.contracts.states import (
    BitwiseKind,
    Inputs,
    LayerState,
    Parts,
    RowStore,
    StateKind,
    StateLayer,
    StateShape,
    StateStore,
)
from specframe.devices.out_of_memory import out_of_memory
from specframe.errors import ContractError, ModelError, SpecframeError, sentence
from specframe.model import current_numerics
from specframe.plugins.protocols import require_members
from specframe.plugins.registry import registry

Result = TypeVar("Result")


@attrs.frozen(eq=False)
class ModuleState:
    """A module that keeps a state, and its kind, whose errors become a sentence."""

    number: int
    """The number of its layer."""
    kind: StateKind
    module: torch.nn.Module
    called: str
    """What errors call the kind."""
    by_token: StateKind | None = None
    """The same kind, which takes in one token after the other, for bitwise equality, or None if it does not allow that."""

    def __str__(self) -> str:
        return self.called

    @property
    def shape(self) -> StateShape:
        """The shape of its state."""
        return call_kind(self.called, "shape", self.kind.shape, self.module)

    @property
    def _kind(self) -> StateKind:
        """The kind that takes in tokens now."""
        return self.by_token if self.by_token is not None and current_numerics.are_active() else self.kind

    def forward(self, state: LayerState) -> Callable[..., Any]:
        """Return what is called in place of the module's ``forward``."""
        forward = call_kind(self.called, "forward", self._kind.forward, self.module, state)
        return functools.partial(call_kind, self.called, "forward", forward)

    def advance(self, before: Parts, inputs: Inputs, counts_B: torch.Tensor) -> Parts:
        """Return the states after taking in the first tokens, after checking their shapes."""
        after = call_kind(self.called, "advance", self._kind.advance, self.module, before, inputs, counts_B)
        shapes = [tuple(part.shape) for part in before]
        if (found := [tuple(getattr(part, "shape", ())) for part in after]) != shapes:
            raise ContractError(f"{self.called}: advance() must return parts of the shapes {shapes}, got {found}")
        return after


@attrs.frozen(eq=False)
class StateForward:
    """What is called in place of the ``forward`` of a module with states, which have this number in their store."""

    layer: ModuleState
    store: StateStore
    number: int

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the module on its rows' states."""
        return self.layer.forward(self.store.state(self.number))(*given, **named)


def call_kind(called: str, member: str, function: Callable[..., Result], *given: Any, **named: Any) -> Result:
    """Return what a function of a kind of state returns; what it raises becomes a sentence, unless it is a lack of memory."""
    try:
        return function(*given, **named)
    except SpecframeError:
        raise
    except Exception as error:  # a third party's method may raise anything
        if isinstance(error, RuntimeError) and out_of_memory(error):
            raise
        raise ContractError(f"{called}: {member}() raised {type(error).__name__}: {sentence(error)}") from error


def state_layers(model: torch.nn.Module, called: str) -> dict[int, ModuleState]:
    """Return the modules of a model whose kind of state a plugin has registered, numbered in the order of their layers.

    A model of the first layers of another has the same numbers as that.

    Raises:
        ModelError: two kinds claim the same layer.
    """
    found: dict[torch.nn.Module, ModuleState] = {}
    for name in registry().names("state kind"):
        kind: StateKind = registry().make("state kind", name)
        entry = registry().entry("state kind", name)
        told = str(entry)
        require_members("state kind", kind, told)
        steps = "bitwise" in entry.traits.able("offers")
        by_token = call_kind(told, "by_token", cast(BitwiseKind, kind).by_token) if steps else None
        for number, kept in call_kind(told, "layers", kind.layers, model).items():
            for module in kept if isinstance(kept, tuple) else (kept,):
                if module in found:
                    raise ModelError(
                        f"layer {number} of {called} is claimed by {found[module].called} and {told}: expected one"
                    )
                found[module] = ModuleState(number, kind, module, told, by_token)
    return dict(enumerate(sorted(found.values(), key=lambda one: one.number)))


def state_forwards(layers: Mapping[int, ModuleState], store: StateStore) -> dict[torch.nn.Module, Callable[..., Any]]:
    """Return what is called in place of each module's ``forward``, in the forward that a store of states expects.

    A module that is not called, as where a part of a model leaves its attention out, is given no state, and takes nothing in.
    """

    return {layer.module: StateForward(layer, store, number) for number, layer in layers.items()}


def open_states(layers: Mapping[int, StateLayer], rows: int, device: torch.device) -> RowStore:
    """Return a store with the states of ``rows`` rows, on a device unless a layer's shape names another."""
    made: RowStore = registry().entry("option", "states").factory(layers, rows, device)
    return made
