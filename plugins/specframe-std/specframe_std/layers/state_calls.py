"""Layers with states in a trace of a forward: each is called between pieces, on its rows' states, as attention is.

In the trace a layer's module is one operator, whose outputs have the shapes that the module gave for tokens of zeros. A short chain
of tokens is computed by a piece of its own, see :mod:`specframe_std.layers.state_pieces`; all else by the module as it is.

Tensor names carry their shape: B rows, T tokens fed per row.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import attrs
import torch
from torch.fx.node import has_side_effect
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten
from transformers import Cache

from specframe.errors import ModelError
from specframe.model.decoder_layers import Forwards
from specframe.model.state_layers import ModuleState, StateForward, open_states, state_forwards
from specframe.model.twin import CURRENT
from specframe_std.layers.operators import ROWS, WIDTH
from specframe_std.states.row_states import advanced

OPERATOR = "specframe::state"

torch.library.define(OPERATOR, "(Tensor hidden, Tensor[] others, int number) -> Tensor[]")

_traced: ContextVar[Mapping[int, StateCall]] = ContextVar("specframe.state.calls")


@torch.library.register_fake(OPERATOR)
def _outputs(hidden: torch.Tensor, _others: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    rows, width = hidden.shape[:2]
    found = list[torch.Tensor]()
    for one in _traced.get()[number].outputs:
        first, *sizes = one.shape
        shape = [rows if first == ROWS else first, *(width if size == WIDTH else size for size in sizes)]
        found.append(hidden.new_empty(shape, dtype=one.dtype))
    return found


STATE = torch.ops.specframe.state.default
has_side_effect(STATE)


@attrs.define(eq=False)
class StateCall:
    """The call of one module with states, as the model's forward has it."""

    module: torch.nn.Module
    arguments: TreeSpec
    leaves: list[Any]
    """The arguments that are no tensors. A tensor's place holds None."""
    places: list[int]
    """The places of the tensors, the hidden states first."""
    given: list[torch.Tensor]
    """These tensors, without numbers."""
    outputs: list[torch.Tensor]
    """What it gave for zeros, without numbers."""
    text: str = ""
    """The piece that it is for short chains, as :func:`specframe_std.layers.pieces.spelled` writes it, or "" for none."""
    run: Callable[..., Any] | None = None
    """Computes that piece."""
    weights: list[tuple[dict[str, Any], str]] = attrs.Factory(list)
    """Where the module holds the weights that the piece reads."""
    constants: list[torch.Tensor] = attrs.Factory(list)
    """The tensors that it reads beside those."""
    serves: Callable[[int, int], bool] = lambda rows, width: False
    """Returns whether the piece holds for these numbers of rows and tokens."""

    def __call__(self, hidden_BTD: torch.Tensor, others: list[torch.Tensor], number: int) -> list[torch.Tensor]:
        """Compute the module's outputs in the forward under way: by the piece where it holds."""
        tensors, forward = [hidden_BTD, *others], CURRENT.get().forwards[self.module]
        if self.run is None or not isinstance(forward, StateForward):
            return self.as_module(forward, tensors)
        state, layer = forward.store.state(number), forward.layer
        prompt_BT, chain = state.prompt_BT, state.sees_BTT is None and not state.apart
        if prompt_BT is None or not chain or not self.serves(*state.real_BT.shape):
            return self.as_module(layer.forward(state), tensors)
        read = (*tensors, state.real_BT, prompt_BT, *state.before)
        held = [holder[name] for holder, name in self.weights]
        found, count = self.run(*[one.contiguous() for one in read], *held, *self.constants), len(self.outputs)
        inputs = tuple(found[count:])
        state.note(inputs, functools.partial(advanced, layer, state.before, inputs))
        return [*found[:count]]

    def as_module(self, forward: Callable[..., Any], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Call what stands for the module, and return its outputs."""
        given, named = self.put(tensors, CURRENT.get().cache)
        return tensors_of(forward(*given, **named))

    def put(self, tensors: list[torch.Tensor], cache: Any) -> Any:
        """Return the arguments of a call, with these tensors and this cache."""
        leaves = [cache if isinstance(one, Cache) else one for one in self.leaves]
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return tree_unflatten(leaves, self.arguments)


def tensors_of(outcome: Any) -> list[torch.Tensor]:
    """Return the tensors in what a module gave."""
    return [one for one in tree_leaves(outcome) if isinstance(one, torch.Tensor)]


class StateCalls:
    """The calls of a model's modules with states in a forward that is traced.

    Args:
        layers: the modules.
        device: of the model.
    """

    def __init__(self, layers: Mapping[int, ModuleState], device: torch.device) -> None:
        self.layers, self.made = layers, dict[int, StateCall]()
        self._states = open_states(layers, ROWS, device)
        self._states.feed(torch.arange(WIDTH, device=device).expand(ROWS, -1))
        self._own = state_forwards(layers, self._states)

    @contextlib.contextmanager
    def tracing(self) -> Iterator[Forwards]:
        """Yield what is called in place of each module's ``forward`` in the trace, which is made inside the block."""
        before = _traced.set(self.made)
        try:
            yield {layer.module: functools.partial(self._call, number) for number, layer in self.layers.items()}
        finally:
            _traced.reset(before)
            self._states.forget()  # what is noted knows its forward, and would stay until garbage is collected

    def _call(self, number: int, *given: Any, **named: Any) -> Any:
        """Return a module's outputs, as one operator's.

        Raises:
            ModelError: it is called twice, or with a number that depends on how many tokens are fed.
        """
        module, (leaves, arguments) = self.layers[number].module, tree_flatten((given, named))
        if number in self.made or any(isinstance(one, torch.SymInt) for one in leaves):
            raise ModelError(
                f"{type(module).__name__}, which keeps a state, is called twice, or with a number of tokens"
            )
        hidden_BTD = named.get("hidden_states", given[0] if given else None)
        places = sorted(
            (place for place, one in enumerate(leaves) if isinstance(one, torch.Tensor)),
            key=lambda place: leaves[place] is not hidden_BTD,
        )
        with _disable_current_modes():
            zeros = [zeros_like(one) if isinstance(one, torch.Tensor) else one for one in leaves]
            some, others = tree_unflatten(zeros, arguments)
            outcome = self._own[module](*some, **others)
            found = [one.to("meta") for one in tensors_of(outcome)]
            shapes = [zeros[place].to("meta") for place in places]
        constant = [None if isinstance(one, torch.Tensor) else one for one in leaves]
        self.made[number] = StateCall(module, arguments, constant, places, shapes, found)
        first, *rest = (leaves[place] for place in places)
        made, (gave, outputs) = iter(torch.ops.specframe.state(first, rest, number)), tree_flatten(outcome)
        return tree_unflatten([next(made) if isinstance(one, torch.Tensor) else one for one in gave], outputs)


def zeros_like(traced: torch.Tensor) -> torch.Tensor:
    """Return zeros in place of a tensor that is traced."""
    sizes = [one.node.hint if isinstance(one, torch.SymInt) else one for one in traced.shape]
    return torch.zeros(sizes, dtype=traced.dtype, device=traced.device)
