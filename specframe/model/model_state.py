"""What tells whether a model is as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import torch

PLAIN = (str, int, float, bool, type(None), torch.dtype, torch.device)
"""Types of a module's attributes that say how it computes."""
SIMPLE = frozenset(PLAIN)
"""The same as a set: most attributes are of one of these types and of no class made from it."""
OWN = frozenset(vars(torch.nn.Module()))
"""Attributes of every module, which say something else or are looked at by themselves: a run is in no training mode."""


@attrs.frozen(eq=False)
class ModelState:
    """What keys, values and states of a prompt depend on beside its tokens: a model's settings, its weights and its buffers.

    Of weights it has a checksum, since torch counts no write through ``Parameter.data``. That reads all of them once, in a
    quarter of the time of a forward of one token.
    """

    settings: list[Any]
    checksums: list[torch.Tensor]
    """One for each device. The host has not waited for them."""

    @classmethod
    def of(cls, module: torch.nn.Module) -> ModelState:
        """Return the state of a model as it is."""
        found, sums = plain_settings(module), dict[torch.device, list[torch.Tensor]]()
        for tensor in (*module.parameters(), *module.buffers()):
            for part in plain_parts(tensor.detach()):
                if part.device.type == "meta":
                    found.append(id(tensor))  # its numbers are elsewhere
                else:
                    sums.setdefault(part.device, []).append(row_sums(part))
        return cls(found, [checksum(torch.cat(some)) for some in sums.values()])

    @property
    def devices(self) -> list[torch.device]:
        """The devices of its weights."""
        return [one.device for one in self.checksums]

    def equals(self, other: ModelState) -> bool:
        """Return whether a model was the same; the host synchronises."""
        return all_equal([(self, other)])


def all_equal(pairs: Iterable[tuple[ModelState, ModelState]]) -> bool:
    """Return whether the models of all pairs were the same; the host synchronises once for each device."""
    differences = dict[torch.device, list[torch.Tensor]]()
    for one, other in pairs:
        if one.settings != other.settings or one.devices != other.devices:
            return False
        for mine, others in zip(one.checksums, other.checksums, strict=True):
            differences.setdefault(mine.device, []).append(mine != others)
    return not any(torch.stack(some).any().item() for some in differences.values())


def plain_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors with the numbers of one: a tensor that is quantised, or split over devices, has others inside."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain_parts(getattr(tensor, name))
    else:
        yield tensor


def row_sums(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sums of a tensor's rows, whose bits are taken for whole numbers: a sum of floats would lose small changes."""
    rows = tensor.reshape(1) if tensor.dim() == 0 else tensor.contiguous()
    whole = all(one * rows.element_size() % 8 == 0 for one in (rows.shape[-1], rows.storage_offset()))
    return rows.view(torch.int64 if whole else torch.uint8).sum(-1, dtype=torch.int64).flatten()


def checksum(sums_N: torch.Tensor) -> torch.Tensor:
    """Return one number for these, in their order. It is another one where one of them is, since the factors are odd."""
    return (sums_N * torch.arange(1, 2 * len(sums_N), 2, device=sums_N.device)).sum()


def memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return which tensor this is, and where its numbers are, as far as it is one of torch's own type."""
    return id(tensor), tensor.data_ptr() if type(tensor) in (torch.Tensor, torch.nn.Parameter) else 0


def settings(module: torch.nn.Module) -> list[Any]:
    """Return what a captured graph of a model depends on: where its tensors are, and its settings.

    A weight that is written to stays where it is.
    """
    return [memory_of(tensor) for tensor in (*module.parameters(), *module.buffers())] + plain_settings(module)


def plain_settings(module: torch.nn.Module) -> list[Any]:
    """Return the settings of a model's modules, and its hooks.

    Adapters that are switched are settings of the modules that have them.
    """
    found = list[Any]()
    for one in module.modules():
        values = vars(one)
        for name, value in values.items():
            if name in OWN:
                continue
            if type(value) in SIMPLE:
                found += (name, value)
            elif is_plain(value):
                found += (name, repr(value))  # it may change in its place
        found.append([*one._forward_hooks.values(), *one._forward_pre_hooks.values(), values.get("forward")])
    return found


def is_plain(value: Any) -> bool:
    """Return whether an attribute is a number, a text or the like, or holds such alone."""
    if isinstance(value, dict):
        return all_plain(value) and all_plain(value.values())
    return all_plain(value) if isinstance(value, list | tuple | set | frozenset) else isinstance(value, PLAIN)


def all_plain(values: Iterable[Any]) -> bool:
    """Return whether all of several values are plain."""
    return all(is_plain(value) for value in values)
