"""Merged weights: linear layers that read the same tensor become one product over weights that lie one after the other.

A GPU launches one product in the place of three or two, and reads as many bytes. The layers are found in a traced graph, not by
name. Their weights become views of one buffer: modules, parameters, the names and bytes of a state dict, and updates in their
place are what they were. A parameter whose data are moved elsewhere later is no longer a part of the buffer, see
:attr:`Merged.holds`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import attrs
import torch
from torch._guards import detect_fake_mode

from specframe.devices.out_of_memory import out_of_memory

LINEAR = torch.ops.aten.linear.default


@attrs.frozen(eq=False)
class Merged:
    """Parameters that are views of one buffer."""

    parameters: tuple[torch.Tensor, ...]
    buffer: torch.Tensor

    @property
    def holds(self) -> bool:
        """Whether the parameters lie in the buffer still, one after the other."""
        at = self.buffer.data_ptr()
        for one in self.parameters:
            if one.data_ptr() != at:
                return False
            at += one.nbytes
        return True


def merge(module: torch.fx.GraphModule) -> list[Merged]:
    """Have each group of linear layers of a traced graph that read the same tensor compute one product; return their weights."""
    siblings = dict[Any, list[torch.fx.Node]]()
    for node in module.graph.nodes:
        if node.target is LINEAR and node.args[1].op == "get_attr":
            siblings.setdefault((node.args[0], len(node.args)), []).append(node)
    found, taken = list[Merged](), set[int]()
    for nodes in siblings.values():
        columns = [[tensor_of(module, node.args[place]) for node in nodes] for place in range(1, len(nodes[0].args))]
        weights = [id(one) for column in columns for one in column]
        if len(nodes) == 1 or taken.intersection(weights) or any(map(refusal, columns)):
            continue
        taken.update(weights)
        try:
            merged = [Merged(tuple(column), packed(column)) for column in columns]
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            break  # those that are merged stay so, the others are products of their own
        _replace(module, nodes, [one.buffer for one in merged], len(found))
        found += merged
    return found


def refusal(weights: Sequence[torch.Tensor]) -> str | None:
    """Return in a word why weights cannot be merged, or None if they can be."""
    if any(type(one) is not torch.nn.Parameter for one in weights):
        return "quantised"
    if len({id(one) for one in weights}) < len(weights):
        return "tied"
    if len({(one.dtype, one.device, one.shape[1:]) for one in weights}) > 1:
        return "unlike"
    if not all(one.is_contiguous() for one in weights):
        return "strided"
    alone = all(one.untyped_storage().nbytes() == one.nbytes for one in weights)
    return None if alone or Merged(tuple(weights), weights[0]).holds else "shared"


@torch.inference_mode(False)
@torch.no_grad()
def packed(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the buffer that has the weights one after the other, whose data they are from now on, if they are not already.

    While it is filled, the bytes of these weights are held twice.
    """
    sizes, first = [len(one) for one in weights], weights[0]
    if Merged(tuple(weights), first).holds:
        shape = sum(sizes), *first.shape[1:]
        return first.detach().as_strided(shape, first.stride(), first.storage_offset())
    buffer = first.detach().new_empty(sum(sizes), *first.shape[1:])
    for weight, part in zip(weights, buffer.split(sizes), strict=True):
        part.copy_(weight)
        weight.data = part
    return buffer


def tensor_of(module: torch.fx.GraphModule, node: Any) -> torch.Tensor:
    """Return the tensor that a graph's node reads from its module."""
    return cast("torch.Tensor", operator.attrgetter(str(node.target))(module))


def _replace(
    module: torch.fx.GraphModule, nodes: list[torch.fx.Node], buffers: list[torch.Tensor], number: int
) -> None:
    """Put one linear layer in the place of several."""
    graph, given = module.graph, cast("torch.fx.Node", nodes[0].args[0])
    mode = detect_fake_mode(given.meta["val"])
    assert mode is not None
    fakes = [mode.from_tensor(one, static_shapes=True) for one in buffers]
    sizes = [cast("torch.fx.Node", node.args[1]).meta["val"].shape[0] for node in nodes]
    with mode, graph.inserting_before(nodes[0]):
        held = []
        for place, (buffer, fake) in enumerate(zip(buffers, fakes, strict=True)):
            name = f"_merged_{number}_{place}"
            module.register_buffer(name, buffer, persistent=False)
            held.append(graph.get_attr(name))
            held[-1].meta["val"] = fake
        whole = graph.call_function(LINEAR, (given, *held))
        one = nodes[0].meta["val"]  # torch 2.11 has no product of tensors without numbers
        whole.meta["val"] = one.new_empty(*one.shape[:-1], sum(sizes))
        parts = graph.call_function(torch.ops.aten.split_with_sizes.default, (whole, sizes, -1))
        parts.meta["val"] = torch.ops.aten.split_with_sizes.default(whole.meta["val"], sizes, -1)
        found = [graph.call_function(operator.getitem, (parts, place)) for place in range(len(nodes))]
    # the first goes after all was put before it
    for node, part, value in zip(nodes, found, parts.meta["val"], strict=True):
        part.meta["val"] = value
        node.replace_all_uses_with(part)
        graph.erase_node(node)
    graph.eliminate_dead_code()
