"""Random numbers at the extremes of the bits that they are made of."""

from __future__ import annotations

import pytest
import torch
from specframe_std import noise
from specframe_std.noise import Stream, gumbel, gumbel_of, uniform_of

# every number of leading ones and of leading zeros, with all other bits 0 or 1; they include the least and the largest number
EXTREMES = torch.tensor([sign * (1 << place) - one for place in range(63) for sign in (1, -1) for one in (0, 1)])


@pytest.mark.wide
def test_gumbel_noise_is_finite_for_all_bits() -> None:
    """No bits give noise that would keep a token from ever being chosen, or have it chosen whatever its logit."""
    drawn = gumbel_of(EXTREMES)
    assert drawn.dtype == torch.float32
    assert drawn.isfinite().all()
    assert drawn.max() > 22  # what is rare is still drawn: 2**-32 of all noise is above


@pytest.mark.wide
def test_gumbel_noise_rises_as_the_bits_fall() -> None:
    """The noise is the inverse of its distribution at the number of the bits, also next to the extremes."""
    bits = torch.arange(2**32 - 4096, 2**32)
    drawn, exact = gumbel_of(bits << 32).double(), -(-torch.log1p(-(bits.double() + 0.5) * 2.0**-32)).log()
    sound = bits < 2**32 - 384  # those after them are rounded to 1, or to the number before it
    torch.testing.assert_close(drawn[sound], exact[sound], rtol=0, atol=0.03)
    assert (drawn.diff() <= 0).all()
    least = torch.arange(300)
    exact = -(-torch.log1p(-(least.double() + 0.5) * 2.0**-32)).log()
    torch.testing.assert_close(gumbel_of(least << 32).double(), exact, rtol=0, atol=1e-5)


def test_uniform_numbers_are_within_0_and_1_for_all_bits() -> None:
    """No bits give 0 or 1, and neighbouring bits that are used give numbers that differ."""
    drawn = uniform_of(EXTREMES)
    assert ((drawn > 0) & (drawn < 1)).all()
    for first in (0, 2**51 - 2, 2**52 - 4):
        steps = uniform_of(torch.arange(first, first + 4) << 12).diff()
        assert (steps == 2.0**-52).all()


def test_noise_that_was_minus_infinity() -> None:
    """The token that a greedy row wants is taken where its noise had no number below 1: seed 0, sequence 0, position 155,867."""
    positions = torch.tensor([[155_867]])
    drawn = gumbel(0, torch.tensor([[0]]), positions, Stream.TARGET, 8)
    assert drawn.isfinite().all()
    peak = torch.full((8,), float("-inf")).scatter(0, torch.tensor(5), 0.0)
    assert (peak + drawn).argmax(-1).item() == 5


def test_every_part_of_a_key_counts() -> None:
    """Another seed, sequence, position or purpose draws another number; the same ones draw the same."""
    key = (1, torch.tensor([2]), torch.tensor([3]), Stream.TARGET)
    others = [
        key,
        (9, *key[1:]),
        (*key[:1], key[1] + 9, *key[2:]),
        (*key[:2], key[2] + 9, key[3]),
        (*key[:3], Stream.DRAFT),
    ]
    for draw in (noise.uniform, lambda *parts: gumbel(*parts, 4)[..., 0]):
        drawn = [float(draw(*parts)) for parts in others]
        assert len(set(drawn)) == len(others)
        assert float(draw(*key)) == drawn[0]
