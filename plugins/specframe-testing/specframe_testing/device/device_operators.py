"""The rules of each operator: what waits for the device, which operands may be on the host, what is memory of its own."""

from __future__ import annotations

import functools
from typing import Any

import attrs
import torch

aten = torch.ops.aten

WAITS: dict[Any, str] = {
    aten._local_scalar_dense.default: "item",
    aten.nonzero.default: "nonzero",
    aten.nonzero_numpy.default: "nonzero",
    aten.argwhere.default: "argwhere",
    aten.masked_select.default: "masked_select",
    aten.equal.default: "equal",
    aten._unique2.default: "unique",
    aten.unique_dim.default: "unique",
    aten.unique_consecutive.default: "unique",
    aten.bincount.default: "bincount",
}
"""Operators whose results' values or sizes the host has to know before it goes on."""

INDEXED = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default)
"""Operators with a list of indices as second argument."""

WHOLE = frozenset(
    {
        aten.linear.default,
        aten.matmul.default,
        aten.scaled_dot_product_attention.default,
        aten.layer_norm.default,
        aten.rms_norm.default,
    }
)
"""Composite operators that are one kernel here. All others come as their parts, each of which is held to the rules."""

TAKES_HOST_SCALARS = frozenset(
    {
        aten.fill_.Tensor,
        aten.fill.Tensor,
        aten.masked_fill.Tensor,
        aten.masked_fill_.Tensor,
        aten.index_fill.int_Tensor,
        aten.index_fill_.int_Tensor,
        aten.where.self,
        *INDEXED,
    }
)
"""Operators, apart from the pointwise ones, that take a tensor of the host if it has no dimension."""

IN_PLACE_SHAPES = (
    "resize_",
    "resize_as_",
    "set_",
    "squeeze_",
    "unsqueeze_",
    "t_",
    "transpose_",
    "swapaxes_",
    "as_strided_",
)


@attrs.frozen
class Rules:
    """An operator as the device looks at it."""

    composite: bool
    """Whether it is computed as its parts."""
    wait: str | None
    """The reason why the host synchronises, or None if it does not, as far as the operator alone shows."""
    indexed: bool
    host_scalars: bool
    """Whether it takes tensors of the host that have no dimension."""
    writes: bool
    """Whether it writes to an argument."""
    fresh: bool
    """Whether its results are memory of their own, not views of an argument."""
    refused: str | None
    """Why the device does not have it."""


@functools.cache
def rules(func: Any) -> Rules:
    """Return an operator's rules."""
    schema = func._schema
    name = schema.name.partition("::")[2]
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    wait = WAITS.get(func)
    if name == "repeat_interleave" and func._overloadname == "Tensor":
        wait = "repeat_interleave"
    return Rules(
        composite=composite and func not in WHOLE,
        wait=wait,
        indexed=func in INDEXED,
        host_scalars=torch.Tag.pointwise in func.tags or func in TAKES_HOST_SCALARS,
        writes=any(one.alias_info is not None and one.alias_info.is_write for one in schema.arguments),
        fresh=all(one.alias_info is None for one in schema.returns),
        refused="the simulated device does not change a tensor's shape in place" if name in IN_PLACE_SHAPES else None,
    )
