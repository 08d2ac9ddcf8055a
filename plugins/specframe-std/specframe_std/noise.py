"""Random numbers that depend only on their purpose.

A number is a hash of (seed, sequence, position, stream). So a sequence draws the same numbers in any row, in any batch and
after any number of rounds. The hash is the finaliser of SplitMix64 (Steele, Lea, Flood 2014). Its int64 arithmetic wraps
around identically on every device.
"""

from __future__ import annotations

from enum import IntEnum

import torch

_STEP = -7046029254386353131  # 0x9E3779B97F4A7C15, as a signed number
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB
_BELOW_ONE = 1 - 2.0**-24
"""The largest float32 below 1."""


class Stream(IntEnum):
    """Purpose of a random number. Numbers of different streams are independent."""

    TARGET = 1
    """Choosing the target's own token."""
    DRAFT = 2
    """Choosing a draft token."""
    ACCEPT = 3
    """Accepting a draft token."""


def hash_parts(*parts: torch.Tensor | int) -> torch.Tensor:
    """Return a well-mixed int64 for every combination of the parts, which broadcast against each other."""
    state = torch.zeros((), dtype=torch.int64)
    for part in parts:
        state = _mix(state * _STEP + part + _STEP)
    return state


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, places: int) -> torch.Tensor:
    """Return ``x`` shifted right as if it were unsigned."""
    return (x >> places) & ((1 << (64 - places)) - 1)


def uniform(seed: int, sequences: torch.Tensor, positions: torch.Tensor, stream: int) -> torch.Tensor:
    """Return float64 numbers in (0, 1), one for each pair of sequence index and position; the two broadcast."""
    return uniform_of(_keys(seed, sequences, positions, stream))


def gumbel(seed: int, sequences: torch.Tensor, positions: torch.Tensor, stream: int, vocabulary: int) -> torch.Tensor:
    """Return float32 standard Gumbel noise of shape (..., vocabulary), one vector for each pair; all of it is finite.

    Adding it to logits and taking the arg max samples from their softmax. A token whose logit alone is above minus infinity is
    therefore taken whatever the noise.
    """
    ids = torch.arange(vocabulary, device=positions.device)
    return gumbel_of(_mix(_keys(seed, sequences, positions, stream)[..., None] + ids * _STEP))


def uniform_of(bits: torch.Tensor) -> torch.Tensor:
    """Return the float64 number in (0, 1) of int64 bits.

    52 of them are used: with a half added they fill the 53 digits of the format, so no number is rounded to 1.
    """
    return (_shifted(bits, 12).double() + 0.5) * 2.0**-52


def gumbel_of(bits: torch.Tensor) -> torch.Tensor:
    """Return the float32 Gumbel noise of int64 bits, finite for all of them.

    32 of them are used: near 0 the format distinguishes that many, and the noise is large there. Near 1 it distinguishes 24, and
    the last 128 of the 2**32 numbers are rounded to 1, whose noise would be minus infinity: they take the number before it.
    """
    negative = ((_shifted(bits, 32).float() + 0.5) * -(2.0**-32)).clamp(min=-_BELOW_ONE)
    return -(-torch.log1p(negative)).log()


def _keys(seed: int, sequences: torch.Tensor, positions: torch.Tensor, stream: int) -> torch.Tensor:
    return hash_parts(seed, stream, sequences, positions)
