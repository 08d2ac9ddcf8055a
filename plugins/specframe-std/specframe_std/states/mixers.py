"""Mixers of transformers whose state is held row by row: their own ``forward``, with another cache and another scan.

A mixer projects its tokens, convolves them, scans them and projects the outcome. All but the scan and the window of the
convolution is left to it. It is called with a stand-in for the cache, which holds nothing, so that it takes the path that it takes
for a prompt. The functions that its module has for the convolution and the scan are replaced in a copy of ``forward`` with globals
of its own: the module itself is not written to, and other threads may call it meanwhile.

Tensor names carry their shape: B rows, T tokens of a block, C channels of a convolution, W places of its window.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar

import torch
from transformers.activations import ACT2FN

from specframe.contracts.states import Inputs, LayerState, Parts, StateKind, StateShape
from specframe.errors import ModelError
from specframe_std.states.recurrence import RecurrenceSteps, Take, last, one_by_one, scanned
from specframe_std.states.windows import adjoining, along_paths, slid, summed_taps

CONVOLVE = "causal_conv1d_fn"
"""The function by which mixers convolve several tokens."""

SHORT = 24
"""Places up to which a convolution is a sum of products: on a CPU, torch's takes two to five times as long for so few."""

CACHES = ("cache_params", "past_key_values")
"""How mixers call their cache."""


class MixerCall:
    """One call of a mixer: the window and the scan that it is given, and what they take in.

    It is a stand-in for the mixer's cache, too.

    Args:
        kind: of the layer's state.
        layer: the mixer.
        state: its rows' states.
    """

    def __init__(self, kind: MixerKind, layer: torch.nn.Module, state: LayerState) -> None:
        self._kind, self._layer, self._state = kind, layer, state
        self._inputs: list[torch.Tensor] = []
        self._after: list[torch.Tensor | Callable[[], torch.Tensor]] = []

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the mixer in place of its own ``forward``."""
        function, parameters = rebound(own_forward(self._layer), self._kind.scan)
        arguments = dict(zip(parameters, given, strict=False)) | named
        for name in parameters:
            if name in CACHES:
                arguments[name] = self
            elif name.endswith("_mask"):
                arguments[name] = None  # padding is known by the rows' tokens
        before = CALL.set(self)
        try:
            outcome = function(self._layer, **arguments)
        finally:
            CALL.reset(before)
        self._state.note(tuple(self._inputs), self._states_after if self._state.sees_BTT is None else None)
        return outcome

    def _states_after(self) -> Parts:
        """Return the window and the states after the block."""
        return tuple(one() if callable(one) else one for one in self._after)

    def get_conv_state(self, *_: Any, **__: Any) -> None:
        """Return None: the mixer holds no window."""

    def get_recurrent_state(self, *_: Any, **__: Any) -> None:
        """Return None: the mixer holds no state."""

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        """Return False: the mixer reads its tokens as a prompt."""
        return False

    def is_recording_past(self, *_: Any) -> bool:
        """Return True: a token that is fed alone comes with its window as others do."""
        return True

    def update_conv_state(self, inputs_BCT: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return what is convolved: the window of the tokens before, and the block."""
        window_BCW, real_BT = self._state.before[0], self._state.real_BT
        inputs_BCT = inputs_BCT * real_BT[:, None].to(inputs_BCT.dtype)
        self._inputs.append(inputs_BCT.mT)
        full_BCT = torch.cat([window_BCW.to(inputs_BCT.dtype), inputs_BCT], dim=-1)
        if self._state.apart:
            full_BCT = adjoining(full_BCT, real_BT)
        self._after.append(full_BCT[..., full_BCT.shape[-1] - window_BCW.shape[-1] :])
        return full_BCT

    def update_recurrent_state(self, state: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return the state, which the scan has kept."""
        return state

    def convolve(
        self,
        usual: Callable[..., torch.Tensor],
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **named: Any,
    ) -> torch.Tensor:
        """Return the convolution of the block, which that of the window may precede; in a tree each token's is over its own path.

        Args:
            usual: the mixer's own convolution.
            hidden_states: the window and the block, (B, C, W + T).
            weight: (C, W + 1).
            bias: (C,).
            activation: by its name in transformers.
            named: further arguments of the mixer's own convolution.
        """
        width, window = weight.shape[-1], weight.shape[-1] - 1
        if self._kind.exact:  # with one rounding
            exact = torch.promote_types(weight.dtype, torch.float32)
            weight, bias = weight.to(exact), None if bias is None else bias.to(exact)
        if self._state.parents_BT is not None:
            paths_BCTW = along_paths(hidden_states, self._state.parents_BT, width).to(weight.dtype)
            taps = paths_BCTW.unbind(-1)
        elif hidden_states.shape[-1] > SHORT and not self._kind.exact:
            return usual(hidden_states, weight, bias, activation=activation, **named)
        else:
            inputs, length = hidden_states.to(weight.dtype), hidden_states.shape[-1] - window
            taps = tuple(inputs.narrow(-1, place, length) for place in range(width))
        output_BCT = summed_taps(taps, weight, bias)
        if activation is not None:
            output_BCT = ACT2FN[activation](output_BCT)
        return output_BCT.to(hidden_states.dtype)

    def scan(self, usual: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Return what the mixer's scan returns, going on from the rows' states; the mixer does not keep the state that it gets."""
        held = self._state.before[len(self._after)]
        output, inputs, after = self._kind.scanned(self._layer, usual, self._state, held, *given, **named)
        self._inputs.extend(inputs)
        self._after.append(after)
        return output, held


CALL: ContextVar[MixerCall] = ContextVar("specframe_std.states.call")
"""The call of a mixer under way in this thread."""


class MixerKind:
    """A kind of state that a mixer of transformers keeps: the window of a convolution, and the state of a scan."""

    offers = frozenset({"bitwise"})
    scan: ClassVar[str]
    """The function by which mixers of the kind scan several tokens."""
    exact = False
    """Whether tokens are taken in one after the other, so that each has the same bits whatever else is fed."""

    def by_token(self) -> StateKind:
        """Return the kind with tokens that are taken in one after the other."""
        made = copy.copy(self)
        made.exact = True
        return made

    def layers(self, model: torch.nn.Module) -> Mapping[int, tuple[torch.nn.Module, ...]]:
        """Return the mixers of a model that scan so, by the number of their layer."""
        return by_layer(module for module in model.modules() if self.known(module))

    def known(self, module: torch.nn.Module) -> bool:
        """Return whether a module is a mixer of the kind."""
        return self.scan in calls(module) and hasattr(module, "layer_idx")

    def shape(self, layer: torch.nn.Module) -> StateShape:
        """Return the shapes of the window and the state."""
        convolution = window_of(layer)
        window = (convolution.in_channels, convolution.kernel_size[0] - 1)
        weight, sizes = convolution.weight, self.sizes(layer)
        return StateShape((window, *sizes), (weight.dtype, *(torch.float32,) * len(sizes)), weight.device)

    def sizes(self, layer: Any) -> tuple[tuple[int, ...], ...]:
        """Return the size of each scan's state of one row."""
        raise NotImplementedError

    def forward(self, layer: torch.nn.Module, state: LayerState) -> Callable[..., Any]:
        """Return the mixer's call on the rows' states."""
        return MixerCall(self, layer, state)

    def scanned(
        self, layer: Any, usual: Callable[..., Any], state: LayerState, held: torch.Tensor, *given: Any, **named: Any
    ) -> tuple[torch.Tensor, Inputs, torch.Tensor | Callable[[], torch.Tensor]]:
        """Return what :meth:`run` returns, or the same token by token."""
        if not self.exact:
            return self.run(layer, usual, state, held, *given, **named)
        steps = self.steps(layer, state, *given, **named)
        outputs, after = scanned(steps, held, state.real_BT, state.parents_BT)
        return steps.outcome(outputs), steps.inputs, after

    def run(
        self, layer: Any, usual: Callable[..., Any], state: LayerState, held: torch.Tensor, *given: Any, **named: Any
    ) -> tuple[torch.Tensor, Inputs, torch.Tensor | Callable[[], torch.Tensor]]:
        """Return the scan's output, what its state takes in of each token, and the states after the last, or what computes them.

        Args:
            layer: the mixer.
            usual: its own scan.
            state: its rows' states.
            held: those of this scan.
            given: the arguments of the scan.
            named: those given by name.
        """
        raise NotImplementedError

    def after(
        self, layer: Any, scan: int, before: torch.Tensor, inputs: Inputs, stands_BT: torch.Tensor
    ) -> torch.Tensor:
        """Return the states of a mixer's scan of this number after the kept tokens."""
        raise NotImplementedError

    def steps(self, layer: Any, state: LayerState, *given: Any, **named: Any) -> RecurrenceSteps:
        """Return what a scan does token by token; the arguments are those of :meth:`run`."""
        raise NotImplementedError

    def take(self, layer: Any, scan: int) -> Take:
        """Return what has the states of a mixer's scan of this number take in a token."""
        raise NotImplementedError

    def advance(self, layer: torch.nn.Module, before: Parts, inputs: Inputs, counts_B: torch.Tensor) -> Parts:
        """Return the window and the state after the first tokens of each row."""
        states, window_BCW = before[1:], slid(before[0], inputs[0], counts_B)
        if not states:
            return (window_BCW,)
        stands_BT = torch.arange(inputs[0].shape[1], device=counts_B.device) < counts_B[:, None]
        each = len(inputs[1:]) // len(states)
        taken = [inputs[1 + each * scan : 1 + each * (scan + 1)] for scan in range(len(states))]
        if self.exact:
            steps = (one_by_one(self.take(layer, scan), one, taken[scan], stands_BT) for scan, one in enumerate(states))
            return window_BCW, *map(last, steps, states)
        return window_BCW, *(self.after(layer, scan, one, taken[scan], stands_BT) for scan, one in enumerate(states))


def by_layer(modules: Iterable[torch.nn.Module]) -> dict[int, tuple[torch.nn.Module, ...]]:
    """Return modules by the number of their layer."""
    found: dict[int, tuple[torch.nn.Module, ...]] = {}
    for module in modules:
        number = int(module.layer_idx)  # type: ignore[arg-type]
        found[number] = (*found.get(number, ()), module)
    return found


def calls(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the functions and methods that a module's ``forward`` calls."""
    code = getattr(own_forward(module), "__code__", None)
    return code.co_names if code else ()


def own_forward(module: torch.nn.Module) -> Any:
    """Return the ``forward`` of a module's class, without decorators."""
    return inspect.unwrap(type(module).forward)


@functools.cache
def rebound(own: Any, scan: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Return a copy of a mixer's ``forward`` whose convolution and scan are those of the call under way, and its parameters."""
    named = dict(own.__globals__)
    for name, method in {scan: MixerCall.scan, CONVOLVE: MixerCall.convolve}.items():
        if name in named:
            named[name] = by_call(own.__globals__, name, method)
    function = types.FunctionType(own.__code__, named, own.__name__, own.__defaults__, own.__closure__)
    function.__kwdefaults__ = own.__kwdefaults__
    return function, tuple(inspect.signature(own).parameters)[1:]


def by_call(names: Mapping[str, Any], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that has the call under way do what the function of a module does, which may be replaced meanwhile."""

    def function(*given: Any, **named: Any) -> Any:
        return method(CALL.get(), names[name], *given, **named)

    return function


def window_of(layer: torch.nn.Module) -> torch.nn.Conv1d:
    """Return a mixer's convolution.

    Raises:
        ModelError: it has none, or several.
    """
    found = [one for one in layer.children() if isinstance(one, torch.nn.Conv1d)]
    if len(found) != 1:
        raise ModelError(f"a {type(layer).__name__} has {len(found)} convolutions: expected one, whose window is held")
    return found[0]
