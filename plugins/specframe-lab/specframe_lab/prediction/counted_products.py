"""Products that operators compute, and what they read, counted as they come by: on no device, too."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from specframe_memory.allocations import ATTENTION, attended, composed
from torch.utils._python_dispatch import TorchDispatchMode

from specframe_lab.prediction.forward_times import Load

LAYER = 7
"""Products with weights of a decoder layer: queries, keys, values, the output of attention, and three of the feed-forward part. A
layer's overhead is shared out among them, so that parts of a layer, and heads without any, have one."""

WITH_WEIGHTS = {torch.ops.aten.mm.default: 0, torch.ops.aten.addmm.default: 1}
"""The products of states with weights, and the place of the states among their arguments."""


EXPERTS = torch.ops.aten._grouped_mm.default
"""The product of states with the weights of the expert that each of them takes."""


@attrs.define
class ModelPart:
    """The products of all forwards that were fed one number of tokens of one row."""

    weights: int = 0
    weight_bytes: int = 0
    products: int = 0
    operations: int = 0
    others: int = 0
    """Bytes of keys and values that were read, and of results, which are those of each row."""
    experts: list[tuple[int, torch.Tensor]] = attrs.Factory(list)
    """The times that tokens of a row have taken an expert, with the weights of all of them, (E, ...)."""

    def load(self, tokens: int, rows: int) -> Load:
        """Return the same of ``rows`` rows. Experts are read that one of the tokens takes, as if they chose at random."""
        weights, weight_bytes = float(self.weights), float(self.weight_bytes)
        for times, matrices in self.experts:
            taken = 1 - (1 - 1 / len(matrices)) ** (times * rows)
            weights, weight_bytes = weights + taken * matrices.numel(), weight_bytes + taken * matrices.nbytes
        nbytes = weight_bytes + rows * self.others
        layers = self.products / LAYER
        return Load(tokens * rows, weights, nbytes, rows * self.operations, weight_bytes, layers)


class Products(TorchDispatchMode):
    """Counts the products inside the block, of one row, by the tokens that forwards are fed."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[int, ModelPart] = {}
        self._tokens = 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an operator, part by part if it is made of others, and count its products."""
        kwargs = kwargs or {}
        if func is ATTENTION and (made := attended(*args, **kwargs)) is not None:
            query, key, value = args[:3]
            self._part.operations += 2 * query.numel() * (key.shape[2] + value.shape[2])
            self._part.others += key.nbytes + value.nbytes
            return made[0]
        if composed(func):
            with self:
                return func.decompose(*args, **kwargs)  # into products of matrices, whatever a kernel makes of them
        result = func(*args, **kwargs)
        if func is EXPERTS:
            part, (states, matrices) = self._part, args[:2]
            part.experts.append((states.shape[0], matrices))
            part.operations += 2 * states.shape[0] * matrices[0].numel()
            part.products, part.others = part.products + 1, part.others + result.nbytes
        if (place := WITH_WEIGHTS.get(func)) is not None:
            states, weights = args[place : place + 2]
            self._tokens = states.shape[0]
            part = self._part
            part.weights, part.weight_bytes = part.weights + weights.numel(), part.weight_bytes + weights.nbytes
            part.operations += 2 * states.shape[0] * weights.numel()
            part.products, part.others = part.products + 1, part.others + result.nbytes
        return result

    @property
    def _part(self) -> ModelPart:
        return self.parts.setdefault(self._tokens, ModelPart())

    def loads(self, rows: int) -> list[Load]:
        """Return what was counted, for ``rows`` rows."""
        return [part.load(tokens, rows) for tokens, part in self.parts.items()]
