"""The precision that a model computes in, which differs from its dtype where it is quantised.

Weights of few bits are numbers like any others: their products round as the model's dtype does. A model that also rounds its
activations to few bits is as coarse as these: two forwards that differ in the last bit of one activation may put it into different
steps of the quantiser.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedModel

STEP = 2.0**-7
"""The distance between two steps of eight bits with a sign, relative to the largest number of a token: 1 / 127, as in bfloat16."""

EXACT_INPUTS = "act_quant_kwargs"
"""The attribute of torchao's weights that says how activations are quantised, or None if they are not."""


def eps(model: PreTrainedModel) -> float:
    """Return the distance from 1 to the next number of the precision that a model's activations are rounded to.

    It is that of the model's dtype, unless quantised weights say that activations are quantised, too, or do not say.
    """
    own = torch.finfo(model.dtype).eps
    return max(own, STEP) if rounds_activations(model) else own


def rounds_activations(model: torch.nn.Module) -> bool:
    """Return whether a model quantises its activations, or has quantised weights that do not say whether they are."""
    return any(rounds_inputs(weight) for weight in quantised_weights(model))


def quantised_weights(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield a model's quantised weights: matrices of integers, of eight bits, or of a type that is made of such."""
    for tensor in chain(model.parameters(), model.buffers()):
        if tensor.ndim > 1 and any(narrow(part) for part in plain_parts(tensor)):
            yield tensor


def plain_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors with the numbers of one: a tensor that is quantised, or split over devices, has others inside."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for part in (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]):
        if isinstance(part, torch.Tensor):  # a tensor that ranks share names its mesh, too
            yield from plain_parts(part)


def narrow(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds numbers of few bits: not floats of 16 or more, nor ids and truth values."""
    if tensor.dtype in (torch.bool, torch.int64):
        return False
    return not (tensor.is_floating_point() or tensor.is_complex()) or tensor.itemsize == 1


def rounds_inputs(weight: torch.Tensor) -> bool:
    """Return whether a quantised weight is multiplied with quantised activations, as far as it says."""
    return getattr(weight, EXACT_INPUTS, "unknown") is not None
