"""What layers with states compute of a short chain of tokens, traced, with their rows' states as arguments.

A chain of few tokens is what rounds feed. Trees, prompts and rows with padding between their tokens are left to the modules, as all
is where the code would hold for one number of tokens alone.

Tensor names carry their shape: B rows, T tokens fed per row.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from specframe.contracts.states import Inputs, LayerState
from specframe.errors import ModelError, sentence
from specframe.model.state_layers import ModuleState
from specframe_std.layers.merged_weights import tensor_of
from specframe_std.layers.operators import ROWS, WIDTH
from specframe_std.layers.pieces import simplify
from specframe_std.layers.state_calls import StateCall, tensors_of

_log = logging.getLogger(__name__)


def state_graphs(
    made: Mapping[int, StateCall], layers: Mapping[int, ModuleState], device: torch.device
) -> Iterator[tuple[StateCall, torch.fx.GraphModule]]:
    """Yield what each call of a module with states computes of a chain, where it can be traced.

    The arguments are the module's tensors, which tokens are real, which are of a prompt, and the parts of the rows' states; the
    results are its outputs, and what its state takes in. Modules that are alike are traced once.
    """
    traced = dict[Any, tuple[StateCall, torch.fx.GraphModule] | None]()
    for number, call in made.items():
        if (kind := likeness(call)) not in traced:
            try:
                traced[kind] = call, state_graph(layers[number], call, device)
            except Exception as error:  # whatever a module, or a trace of it, raises
                traced[kind] = None
                _log.info("%s is called as it is: %s", type(call.module).__name__, sentence(error))
        if (found := traced[kind]) is not None:
            first, graph = found
            call.serves = first.serves
            yield call, of_another(graph, first.module, call.module)


def likeness(call: StateCall) -> tuple[Any, ...]:
    """Return what the calls have in common whose modules compute the same, each with its own weights."""
    module, plain = call.module, (int, float, bool, str, tuple, type(None))
    settings = [
        (name, one)
        for part in module.modules()
        for name, one in vars(part).items()
        if isinstance(one, plain) and name != "layer_idx"
    ]
    weights = [(name, one.shape, one.dtype) for name, one in held_by(module).items()]
    given = [(one.shape, one.dtype) for one in call.given]
    constants = [one if isinstance(one, plain) else type(one) for one in call.leaves]
    return tuple(map(str, (type(module), module, settings, weights, call.arguments, call.places, given, constants)))


def held_by(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module, by their names."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def of_another(graph: torch.fx.GraphModule, first: torch.nn.Module, other: torch.nn.Module) -> torch.fx.GraphModule:
    """Return a graph with the weights of another module in place of the first one's."""
    names, theirs = {id(one): name for name, one in held_by(first).items()}, held_by(other)
    made, copies, held = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node](), dict[str, torch.Tensor]()
    for node in graph.graph.nodes:
        copies[node] = made.node_copy(node, copies.__getitem__)
        if node.op == "get_attr":
            tensor = tensor_of(graph, node)
            held[node.target] = theirs[names[id(tensor)]] if id(tensor) in names else tensor
    return torch.fx.GraphModule(held, made)


def state_graph(layer: ModuleState, call: StateCall, device: torch.device) -> torch.fx.GraphModule:
    """Return what one module computes, and have its call know for which numbers of rows and tokens that holds.

    Raises:
        ModelError: it holds for one number of tokens alone.
    """
    sizes, shape, count = ShapeEnv(), layer.shape, len(call.given)
    mode = FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=True)

    def sized(size: Iterable[int], dtype: torch.dtype, *open_places: int) -> torch.Tensor:
        zeros = torch.zeros(*size, dtype=dtype, device=shape.device or device)
        kinds = [DimDynamic.DUCK if place in open_places else DimDynamic.STATIC for place in range(zeros.ndim)]
        return mode.from_tensor(zeros, symbolic_context=StatelessSymbolicContext(kinds))

    def forward(*tensors: torch.Tensor) -> list[torch.Tensor]:
        noted, (real_BT, prompt_BT, *before) = list[Inputs](), tensors[count:]
        state = LayerState(tuple(before), real_BT, None, None, prompt_BT, lambda inputs, _: noted.append(inputs))
        given, named = call.put([*tensors[:count]], None)
        return [*tensors_of(layer.kind.forward(layer.module, state)(*given, **named)), *noted[0]]

    given = [
        sized(one.shape, one.dtype, *(n for n, size in enumerate(one.shape) if size == (WIDTH if n else ROWS)))
        for one in call.given
    ]
    real_BT, prompt_BT = (sized((ROWS, WIDTH), torch.bool, 0, 1) for _ in range(2))
    parts = [sized((ROWS, *size), dtype, 0) for size, dtype in zip(shape.sizes, shape.dtypes, strict=True)]
    with torch.inference_mode(False), torch.no_grad(), mode:
        graph = make_fx(forward, pre_dispatch=True, _allow_non_fake_inputs=True)(*given, real_BT, prompt_BT, *parts)
    open_sizes: list[Any] = [size for size in real_BT.shape if isinstance(size, torch.SymInt)]
    symbols = [size.node.expr for size in open_sizes]
    if len(symbols) < 2 or not all(one.is_Symbol for one in symbols):
        raise ModelError("what it computes is written for one number of tokens")

    @functools.cache
    def serves(rows: int, width: int) -> bool:
        values = dict(zip(symbols, (rows, width), strict=True))
        return all(bool(one.expr.subs(values)) for one in sizes.guards)

    call.serves = serves
    simplify(graph)
    return graph
