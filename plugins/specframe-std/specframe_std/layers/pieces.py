"""A piece of a forward: operators of torch, written as text, computed by torch's functions, or compiled."""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import attrs
import torch

ATEN = torch.ops.aten
CASTS = frozenset({ATEN.to.dtype, ATEN.to.device, ATEN.to.dtype_layout})
"""Operators that return what they are given where it has the type and the device already."""
EVERYTHING = 2**63 - 1
"""The end of a slice without one."""


@attrs.frozen(eq=False)
class Piece:
    """Operators between two calls of a cache, attention or a layer with states, with all that they read as arguments."""

    graph: torch.fx.GraphModule
    """The code, of torch's operators."""
    run: Callable[..., Any]
    """Computes it, with the functions of torch in place of its operators: a tuple of what the code gives."""
    text: str
    """What it computes, as :func:`spelled` writes it."""


def simplify(module: torch.fx.GraphModule) -> None:
    """Take operators out of a graph that return what they are given, and what is not used."""
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is torch._C._set_grad_enabled:
            module.graph.erase_node(node)
        elif passes_on(node):
            node.replace_all_uses_with(node.args[0])
    module.graph.eliminate_dead_code()


def passes_on(node: torch.fx.Node) -> bool:
    """Return whether an operator returns what it is given."""
    if node.target in CASTS and not node.kwargs.get("copy"):
        made, given = node.meta["val"], cast("torch.fx.Node", node.args[0]).meta["val"]
        return bool((made.dtype, made.device) == (given.dtype, given.device))
    if node.target is ATEN.slice.Tensor:
        start, end = [*node.args[2:4], None, None][:2] if len(node.args) > 2 else (0, EVERYTHING)
        return bool(len(node.args) < 5 and not start and end == EVERYTHING)
    trains = node.target is ATEN.dropout.default and bool(node.args[2])
    return node.target in {ATEN.detach.default, ATEN.alias.default, ATEN.dropout.default} and not trains


def spelled(graph: torch.fx.Graph) -> str:
    """Return a graph as text, the same one for graphs that compute the same of inputs of the same shapes."""
    numbers = {node: f"%{number}" for number, node in enumerate(graph.nodes)}

    def told(node: torch.fx.Node) -> Any:
        if node.op == "placeholder":
            value = node.meta["val"]
            shaped = isinstance(value, torch.Tensor)
            return (*value.shape, *value.stride(), value.dtype, value.device) if shaped else str(value)
        return str(node.target), *(torch.fx.node.map_arg(one, numbers.__getitem__) for one in (node.args, node.kwargs))

    return "\n".join(str(told(node)) for node in graph.nodes)


def quick(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Return the graph with torch's functions and methods in place of its operators: those are called in half of the time."""
    made = torch.fx.Graph()
    copies = dict[torch.fx.Node, torch.fx.Node]()
    for node in graph.nodes:
        copies[node] = one = made.node_copy(node, copies.__getitem__)
        if isinstance(node.target, torch._ops.OpOverload) and isinstance(node.args[0], torch.fx.Node):
            name, arguments = node.target._schema.name.partition("::")[2], node.target._schema.arguments
            method = isinstance(getattr(torch.Tensor, name, None), types.MethodDescriptorType)
            if method and arguments[0].name == "self":  # not so of torch.where
                one.op, one.target = "call_method", name
            elif name in ("linear", "silu", "gelu"):
                one.target = getattr(torch._C._nn, name)
    return made


def compile_piece(module: torch.fx.GraphModule, path: Path) -> Callable[..., Any]:
    """Return what computes a piece, compiled by Inductor for all sizes, with the rounding of each operator as it is.

    It is kept in a file, and read from there where a process has compiled it. Inductor's own cache is not asked: it tells pieces
    apart by where a process has first imported torch.
    """
    if path.exists():
        with contextlib.suppress(Exception):  # whatever a file holds that was not written to its end
            return torch._inductor.CompiledArtifact.load(path=str(path), format="binary")
    for node in module.graph.nodes:
        node.meta["example_value"] = node.meta.get("val")  # that is where Inductor finds the symbols
    inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    options = {"config_patches": {"emulate_precision_casts": True}}
    # in inference mode Inductor multiplies three open sizes at once, for which its own graph has no operator
    with torch.inference_mode(False), torch.no_grad():
        made = torch._inductor.standalone_compile(module, inputs, options=options)
    with contextlib.suppress(Exception):  # whatever a disk or a cache refuses
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        made.save(path=str(draft), format="binary")
        draft.replace(path)
    return made


def function(called: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls something else, as the node of a graph has to have one."""

    def run(*given: Any) -> Any:
        return called(*given)

    return run
