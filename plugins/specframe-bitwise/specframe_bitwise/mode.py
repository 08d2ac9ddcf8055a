"""The context in which a token's logits do not depend on its batch: every kernel is handed tensors of one shape.

It depends on operators, so it holds for whatever a model is made of: linear layers, convolutions written as products, experts,
norms, activations, attention by ``scaled_dot_product_attention``. An operator is in one of five classes:

- products and attention are computed in tiles of one shape (:mod:`specframe_bitwise.products`, ``attention``);
- reductions are computed in chunks with one number of rows, for kernels share out rows by how many there are;
- functions of single numbers that round (an exponential) are computed in whole vectors, on a CPU;
- what moves numbers, compares them or computes them by one correctly rounded operation is left as it is;
- an operator made of others is taken apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from specframe.devices import kinds
from specframe.errors import ModelError
from specframe_bitwise import bitwise_forwards, bitwise_operators, products
from specframe_bitwise.bitwise_attention import attention
from specframe_bitwise.tiles import by_numbers, by_rows


class BitwiseMode(TorchDispatchMode):
    """Computes every operator inside the block by its rule."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute one operator."""
        rule = RULES[func] if func in RULES else found(func)
        if rule is None:
            return func(*args, **(kwargs or {}))
        if rule is decomposed:
            with self:
                return func.decompose(*args, **(kwargs or {}))
        try:
            return rule(func, *args, **(kwargs or {}))
        except NotImplementedError as error:
            raise self.refusal(func) from error

    def refusal(self, func: Any) -> ModelError:
        """Return the error of an operator that has another result for other shapes."""
        return ModelError(f"bitwise: a model {unknown_operator(func)}: expected linear layers, and attention by sdpa")


def unknown_operator(func: Any) -> str:
    """Return the message about an operator for which there is no rule."""
    return f"calls {name(func)!r}, for which no fixed shape is known"


def name(func: Any) -> str:
    """Return the name of an operator."""
    return str(func._schema.name).partition("::")[2]


@contextlib.contextmanager
def bitwise(device: torch.device) -> Iterator[None]:
    """Compute everything inside the block bitwise alike, whatever the batch, the width and the slots.

    On CUDA, sums of products are kept in float32 for the time, and not split, by settings that hold for the process.
    """
    with kinds.of(device).precise(), bitwise_forwards.active(), BitwiseMode():
        yield


def outside() -> AbstractContextManager[Any]:
    """Compute everything inside the block as it is, also within :func:`bitwise`."""
    return _disable_current_modes()


def whole(func: Any, *args: Any, **options: Any) -> Any:
    """Compute a function of every number of its tensors, in vectors."""
    places = [index for index, value in enumerate(args) if isinstance(value, torch.Tensor)]
    tensors = [args[index] for index in places]
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
        return func(*args, **options)
    in_place = func._schema.is_mutable

    def call(*given: torch.Tensor) -> torch.Tensor:
        filled = list(args)
        for index, tensor in zip(places, given, strict=True):
            filled[index] = tensor.clone() if in_place and index == 0 else tensor
        return func(*filled, **options)

    if not in_place:
        return by_numbers(call, *tensors)
    return args[0].copy_(by_numbers(call, *tensors))


def real(func: Any, *args: Any, **options: Any) -> Any:
    """Compute sums and products as they are, but those of complex numbers, or with a factor: these round twice."""
    if options.get("alpha", 1) == 1 and not (isinstance(args[0], torch.Tensor) and args[0].is_complex()):
        return func(*args, **options)
    return whole(func, *args, **options)


def power(func: Any, *args: Any, **options: Any) -> Any:
    """Compute squares as they are."""
    return (
        func(*args, **options) if isinstance(args[1], int | float) and args[1] == 2 else whole(func, *args, **options)
    )


def reduce_tiles(func: Any, x: torch.Tensor, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
    """Compute a mean or a sum along dimensions."""
    if not x.is_floating_point():
        return func(x, dim, keepdim, **options)
    return by_rows(lambda piece: func(piece, [1], False, **options), x, dim, keepdim)


def reduced_all(func: Any, x: torch.Tensor, **options: Any) -> Any:
    """Compute the mean or the sum of all numbers."""
    if not x.is_floating_point():
        return func(x, **options)
    several = getattr(torch.ops.aten, name(func))
    several = several.dim if "dim" in several.overloads() else several.dim_IntList
    return by_rows(lambda piece: several(piece, [1], False, **options), x, None, False)


def reduced_later(func: Any, x: torch.Tensor, *args: Any, **options: Any) -> Any:
    """Compute a norm or a variance, whose operator has an argument before, or after, the dimensions."""
    names = [argument.name for argument in func._schema.arguments[1:]]
    given = dict(zip(names, args, strict=False)) | options
    keep, dims = given.pop("keepdim", False), given.pop("dim", None)
    if not x.is_floating_point():
        return func(x, *args, **options)
    return by_rows(lambda piece: func(piece, **given, dim=[1], keepdim=False), x, dims, keep)


def along(func: Any, x: torch.Tensor, *args: Any, **options: Any) -> Any:
    """Compute a function along one dimension: a softmax, a running sum, an order."""
    names = [argument.name for argument in func._schema.arguments[1:]]
    given = dict(zip(names, args, strict=False)) | options
    dim = given.pop("dim", -1)
    if not x.is_floating_point() or not x.ndim or not x.numel():
        return func(x, *args, **options)
    return by_rows(lambda piece: func(piece, **given, dim=1), x, dim, True)


def norm_tiles(func: Any, x: torch.Tensor, shape: Any, *args: Any) -> Any:
    """Compute a norm over the last dimensions with its weights; its statistics are not returned in their shape."""
    output = normed_alone(lambda *given: func(*given)[0], x, shape, *args)
    return output, x.new_empty(0), x.new_empty(0)


def normed_alone(func: Any, x: torch.Tensor, shape: Any, *args: Any) -> torch.Tensor:
    """Compute a norm over the last dimensions that returns no statistics.

    ``rms_norm`` is not taken apart, because torch 2.13 crashes in inference mode when it does so.
    """
    rows_RD = x.flatten(-len(shape)).reshape(-1, x.shape[-len(shape) :].numel())
    flat = [value.flatten() if isinstance(value, torch.Tensor) else value for value in args]
    return by_rows(lambda piece: func(piece, [piece.shape[1]], *flat), rows_RD, 1, True).view(x.shape)


def refuse_operator(func: Any, *_: Any, **__: Any) -> Any:
    """Refuse an operator that computes differently for different shapes, in a way that is not known here."""
    raise NotImplementedError


def decomposed(func: Any, *_: Any, **__: Any) -> Any:
    """Mark an operator that is taken apart into others."""


Rule = Callable[..., Any]

_BY_NAME: dict[str, Rule] = {
    "linear": products.linear,
    "addmm": products.addmm,
    "mm": products.matmul,
    "matmul": products.matmul,
    "_grouped_mm": products.grouped_product,
    "grouped_mm_fallback": products.grouped_product,
    "scaled_dot_product_attention": attention,
    "pow": power,
    "rms_norm": normed_alone,
    **dict.fromkeys(bitwise_operators.TWO_STEPS, real),
    **dict.fromkeys(bitwise_operators.ALONG_SEVERAL, reduced_later),
    **dict.fromkeys(bitwise_operators.ALONG_ONE, along),
    **dict.fromkeys(bitwise_operators.NORMS, norm_tiles),
    **dict.fromkeys(bitwise_operators.REFUSED, refuse_operator),
}
"""The rules of operators, by name."""

RULES: dict[Any, Rule | None] = {}
"""The rules of the operators seen so far, or None if an operator is left as it is."""


def found(func: Any) -> Rule | None:
    """Find the rule of an operator, and keep it."""
    RULES[func] = rule = _rule(func)
    return rule


def _rule(func: Any) -> Rule | None:
    rule = _usual_rule(func)
    written = any(argument.is_out for argument in func._schema.arguments)
    return refuse_operator if rule is not None and written else rule


def _usual_rule(func: Any) -> Rule | None:
    plain = name(func).removesuffix("_")
    if plain in ("mean", "sum"):
        return reduce_tiles if "dim" in [argument.name for argument in func._schema.arguments] else reduced_all
    if plain in _BY_NAME:
        return _BY_NAME[plain]
    if func.is_view:
        return None
    if torch.Tag.nondeterministic_seeded in func.tags and not func._can_decompose():
        return None
    if torch.Tag.pointwise in func.tags:
        return None if plain in bitwise_operators.ROUNDED_ONCE else whole
    return decomposed if func._can_decompose() else None
