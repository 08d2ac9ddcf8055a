"""Keys and values that are written by the operators before attention, in the memory of a store.

Compiled with what makes keys and values, the write is a kernel with it: two launches of a layer less.

Tensor names carry their shape: B rows, T tokens fed per row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

from specframe_std.layers.operators import update_and_attend

ATEN = torch.ops.aten
PLACES = 97
"""Places of a store that is traced: another size than all in :mod:`specframe_std.layers.operators`."""


def write_directly(module: torch.fx.GraphModule) -> tuple[int, ...]:
    """Have a graph write what its attention reads, and give attention no keys and values.

    The graph is given further arguments after its own: the places of the tokens, (B, T), and the memory of the keys and of the
    values of each layer that attends, (places, H, D).

    Returns:
        The layers' numbers, in the order of their memory.
    """
    graph, layers = module.graph, list[int]()
    attending = [node for node in graph.nodes if node.target is update_and_attend]
    if not attending:
        return ()
    given = [node for node in graph.nodes if node.op == "placeholder"]
    ids_BT, last = given[0].meta["val"], given[-1]

    def argument(value: torch.Tensor) -> torch.fx.Node:
        nonlocal last
        with graph.inserting_after(last):
            last = graph.placeholder(f"memory_{len(layers)}")
        last.meta["val"] = value
        return last

    places_BT = argument(torch.empty_like(ids_BT))
    for node in attending:
        query, key, value, *others = node.args
        layers.append(others[1])
        dtype = key.meta["val"].dtype
        memory = [argument(memory_of(one.meta["val"], dtype)) for one in (key, value)]
        with graph.inserting_before(node):
            places_N = graph.call_function(ATEN.view.default, (places_BT, [-1]))
            for held, states in zip(memory, (key, value), strict=True):
                by_token = graph.call_function(ATEN.transpose.int, (states, 1, 2))
                rows = graph.call_function(ATEN.flatten.using_ints, (by_token, 0, 1))
                if states.meta["val"].dtype != dtype:  # values are as a linear layer under autocast left them
                    rows = graph.call_function(ATEN.to.dtype, (rows, dtype))
                graph.call_function(ATEN.index_put_.default, (held, [places_N], rows))
        node.args = (query, None, None, *others)
    return tuple(layers)


def memory_of(states_BHTD: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return what stands in a graph for the memory of keys or values, of as many places as there may be."""
    _rows, heads, _width, size = states_BHTD.shape
    sizes: Any = StatelessSymbolicContext([DimDynamic.DUCK, DimDynamic.STATIC, DimDynamic.STATIC])
    with torch.inference_mode(False):  # whose tensors are not written to where pieces are compiled
        plain = torch.zeros(PLACES, int(heads), int(size), dtype=dtype, device=states_BHTD.device)
        made: torch.Tensor = states_BHTD.fake_mode.from_tensor(plain, symbolic_context=sizes)
    return made
