"""The bytes that tensors hold: an allocation counter, on any device and on none.

It sees what goes through torch's dispatcher, and not what a kernel takes inside: the scratch space of a matrix product or of
attention, which is a few megabytes at most.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import attrs
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specframe_memory.shape_memo import ShapeMemo

OTHERS = "activations"
"""The part of what nobody has named."""
KEPT = "constants"
"""The part of what was made before the block and is used in it."""

ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
GROUPED = torch.ops.aten._grouped_mm.default
"""The product of rows with the matrix of each row's expert."""

MEMO = ShapeMemo()


@attrs.frozen
class Peak:
    """Bytes in use at one moment."""

    total: int
    parts: Mapping[str, int]


NOTHING = Peak(0, {})


class Allocations(TorchDispatchMode):
    """Counts the bytes of the storages that are made inside the block and are still there.

    Args:
        limit: more bytes than this raise a lack of memory, as a device's allocator does, or None if there is no limit.
        hollow: whether tensors on the meta device count as well.
        name: returns the part that a new tensor belongs to, by its shape, or None for the part of the block it is made in.
    """

    def __init__(
        self,
        limit: int | None = None,
        hollow: bool = False,
        name: Callable[[torch.Tensor], str | None] = lambda tensor: None,
    ) -> None:
        super().__init__()
        self.limit, self._hollow, self._name = limit, hollow, name
        self.used = 0
        self.made: dict[str, Peak] = {}
        """By parts, the most bytes that were in use when some of that part was made."""
        self._parts: Counter[str] = Counter()
        self._begun = NOTHING
        self._part = OTHERS
        self._known: dict[int, tuple[weakref.ref[Any], str, int]] = {}
        """The storages that there are, by identity: a reference that notes their end, their part and their bytes."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what is made inside the block as one part."""
        before, self._part = self._part, name
        try:
            yield
        finally:
            self._part = before

    @contextmanager
    def span(self) -> Iterator[list[Peak]]:
        """Give a list that has, after the block, the most bytes that were in use inside it."""
        begun, made, found = self._begun, self.made, list[Peak]()
        self.begin()
        try:
            yield found
        finally:
            found.append(self.peak)
            for part, one in self.made.items():
                made[part] = max(made.get(part, NOTHING), one, key=lambda peak: peak.total)
            self._begun, self.made = begun, made

    @property
    def peak(self) -> Peak:
        """The most bytes that were in use since :meth:`begin`."""
        return max([*self.made.values(), self._begun], key=lambda one: one.total)

    def begin(self) -> None:
        """Forget how many bytes were in use before."""
        self._begun, self.made = Peak(self.used, dict(self._parts)), {}

    def hold(self, tensors: Iterable[torch.Tensor], part: str) -> None:
        """Count tensors that there are already, such as weights."""
        for tensor in tensors:
            self._count(tensor, part)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an operator, part by part if it is made of others, and count the storages that it makes."""
        kwargs = kwargs or {}
        if func is ATTENTION and (made := attended(*args, **kwargs)) is not None:
            out, sums = made
            self._count(out, OTHERS)
            self._count(sums, OTHERS)
            return out
        if func is GROUPED and (product := grouped(*args, **kwargs)) is not None:
            self._count(product, OTHERS)
            return product
        if pieces := composed(func):
            with self:
                return pieces(*args, **kwargs)
        known = self._known
        for one in tensors_of((*args, *kwargs.values()) if kwargs else args):
            if id(one.untyped_storage()) not in known:
                self._count(one, KEPT)  # made outside of the block
        result = MEMO.call(func, args, kwargs) if self._hollow else func(*args, **kwargs)
        for one in tensors_of(result):
            if id(one.untyped_storage()) not in known:
                self._count(one, self._part)
        return result

    def _count(self, tensor: torch.Tensor, part: str) -> None:
        if tensor.device.type == "meta" and not self._hollow:
            return
        storage = tensor.untyped_storage()
        if (key := id(storage)) in self._known:
            return
        nbytes, part = storage.nbytes(), self._name(tensor) or part
        if self.limit is not None and self.used + nbytes > self.limit:
            raise torch.OutOfMemoryError(
                f"out of memory: {nbytes:,} bytes were asked for, {self.used:,} of {self.limit:,} are in use"
            )
        self._known[key] = weakref.ref(storage, lambda _: self._end(key)), part, nbytes
        self.used += nbytes
        self._parts[part] += nbytes
        if self.used > self.made.get(part, NOTHING).total:
            self.made[part] = Peak(self.used, dict(self._parts))

    def _end(self, key: int) -> None:
        _, part, nbytes = self._known.pop(key)
        self.used -= nbytes
        self._parts[part] -= nbytes


def attended(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return what fused attention would on a device: the output (B, H, T, D), and the logarithms of sums that it keeps (B, T, H).

    None: the tensors hold numbers, or no fused kernel takes them, since keys and values are of different sizes.
    """
    if query.device.type != "meta" or query.ndim != 4 or query.shape[-1] != value.shape[-1]:
        return None
    rows, heads, tokens, size = query.shape
    out = query.new_empty(rows, tokens, heads, size).transpose(1, 2)
    return out, query.new_empty(rows, tokens, heads, dtype=torch.float32)


def grouped(rows: torch.Tensor, weights: torch.Tensor, *_: Any, **options: Any) -> torch.Tensor | None:
    """Return the product of rows with the matrices of their experts, (N, M), or None if the tensors hold numbers, or are otherwise.

    On "meta" torch multiplies bfloat16 alone, as its first kernel did. Those of CPUs and of later CUDA devices take any precision.
    """
    if rows.device.type != "meta" or rows.ndim != 2 or weights.ndim != 3:
        return None
    return rows.new_empty(len(rows), weights.shape[-1])


@functools.cache
def composed(operator: Any) -> Callable[..., Any] | None:
    """Return what calls an operator part by part if it is made of others, on every device, or None if it is not."""
    implicit = torch._C.DispatchKey.CompositeImplicitAutograd
    if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), implicit):
        return functools.partial(operator._op_dk, implicit)  # a kernel that Python has as well is several times slower
    return cast(Callable[..., Any] | None, operator.py_kernels.get(implicit))


def tensors_of(given: Any) -> list[torch.Tensor]:
    """Return the tensors in arguments or results."""
    if isinstance(given, torch.Tensor):
        return [given]
    if not isinstance(given, tuple | list):
        return []
    found = []
    for one in given:
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, tuple | list):
            found += tensors_of(one)
    return found
