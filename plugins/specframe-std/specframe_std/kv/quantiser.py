"""Keys and values in 8 bits: each number of a token's head has 8 bits, and the head has one scale.

What a token's keys become depends on these keys alone, neither on the batch nor on other tokens. So a rejected token
leaves no trace in others, and what a token's own forward reads of it is what later forwards read.

A scale has the range of float32 in 16 bits (bfloat16). Codes are computed with the scale that is stored, so its few digits cost
none of the codes': it differs from the exact one by a part in 512 at most, and the largest number still has the largest code. In a
head of 128 numbers codes and scale take 130 bytes, where bfloat16 takes 256.

Tensor names carry their shape: B rows, H heads, T tokens, S slots, D size of a head, P bytes of a quantised head.
"""

from __future__ import annotations

import attrs
import torch

from specframe.contracts.cache import KVShape
from specframe.errors import OptionError

SCALE = torch.bfloat16
"""The dtype of scales."""

SCALE_BYTES = SCALE.itemsize


@attrs.frozen
class Quantiser:
    """Turns the numbers of a head into codes of 8 bits and a scale, side by side in one tensor of bytes, and back.

    Any store can keep such bytes: they are one head's numbers to it, of another size and dtype.
    """

    name: str
    codes: torch.dtype
    """The dtype of codes."""
    largest: float
    """The code of the largest number of a head."""

    def require(self, device: torch.device) -> None:
        """Raise :class:`OptionError` if a device has no codes of this dtype."""
        try:
            torch.zeros(1, device=device).to(self.codes).to(torch.float32)
        except (RuntimeError, TypeError) as error:
            raise OptionError(
                f"{self.name}: expected a device whose torch turns numbers into {self.codes}, got {device}; int8 needs none"
            ) from error

    @staticmethod
    def packed_size(size: int) -> int:
        """Return the bytes of a head of ``size`` numbers: an even number of them, and none where it has no numbers."""
        return size + size % 2 + SCALE_BYTES if size else 0

    def packed_shape(self, shape: KVShape) -> KVShape:
        """Return the shape of a layer's keys and values in bytes. Whole numbers stay as they are: there is nothing to round."""
        if not shape.dtype.is_floating_point:
            return shape
        key_size, value_size = self.packed_size(shape.key_size), self.packed_size(shape.value_size)
        return KVShape(shape.heads, key_size, value_size, torch.uint8, shape.device)

    def pack(self, states_BHTD: torch.Tensor) -> torch.Tensor:
        """Return keys or values as bytes, (B, H, T, P)."""
        size = states_BHTD.shape[-1]
        if not (size and states_BHTD.is_floating_point()):
            return states_BHTD
        numbers = states_BHTD.float()
        scales_BHT1 = (numbers.abs().amax(-1, keepdim=True) / self.largest).to(SCALE)
        codes = numbers / scales_BHT1.float().clamp(min=torch.finfo(SCALE).tiny)  # 0 / 0 is no number
        codes = (codes if self.codes.is_floating_point else codes.round()).to(self.codes)
        parts = [codes.view(torch.uint8), scales_BHT1.view(torch.uint8)]
        if size % 2:
            parts.insert(1, torch.zeros_like(parts[0][..., :1]))
        return torch.cat(parts, dim=-1)

    def unpack(self, packed_BHSP: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the keys or values in bytes as numbers of a dtype, (B, H, S, D)."""
        if not (size and dtype.is_floating_point):
            return packed_BHSP
        wide = torch.promote_types(SCALE, dtype)  # float16 has not the range of scales
        codes = packed_BHSP[..., :size].view(self.codes)
        scales_BHS1 = packed_BHSP[..., -SCALE_BYTES:].view(SCALE).to(wide)
        numbers = codes.to(wide).mul_(scales_BHS1) if self.codes.is_floating_point else codes * scales_BHS1
        return numbers.to(dtype)

    def round(self, states_BHTD: torch.Tensor) -> torch.Tensor:
        """Return keys or values as they come back."""
        return self.unpack(self.pack(states_BHTD), states_BHTD.shape[-1], states_BHTD.dtype)


QUANTISERS = {
    one.name: one
    for one in (
        Quantiser("int8", torch.int8, 127),
        Quantiser("fp8", torch.float8_e4m3fn, 448),  # the largest number of the format
    )
}
"""The quantisers by their names in options."""
