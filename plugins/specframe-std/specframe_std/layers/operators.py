"""Attention as an operator of torch, which a trace of a forward has in one place for each layer."""

from __future__ import annotations

from typing import Any

import torch

OPERATOR = "specframe::attend"

torch.library.define(
    OPERATOR, "(Tensor query, Tensor key, Tensor value, Tensor mask, int layer, float? scaling, int? window) -> Tensor"
)


@torch.library.register_fake(OPERATOR)
def _shape(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> torch.Tensor:
    rows, heads, length, _size = query.shape
    return query.new_empty(rows, length, heads, value.shape[-1])


ATTEND = torch.ops.specframe.attend.default
