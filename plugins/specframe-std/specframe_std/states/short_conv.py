"""Short convolutions, whose window is all that is kept of a row's tokens.

LFM2 and its successors have one in place of attention. Inkling has four in each layer, which attends as well: of keys, of
values, and of what attention and the MLP add. Inkling 2 has them as well, and in some layers others for keys and values
(:mod:`specframe_std.states.dynamic_conv`).
"""

from __future__ import annotations

from typing import Any

import torch

from specframe_std.states import mixers
from specframe_std.states.mixers import MixerKind


class ShortConvolution(MixerKind):
    """The short convolutions of LFM2 and its successors, of Inkling and Inkling 2."""

    scan = mixers.CONVOLVE

    def known(self, module: torch.nn.Module) -> bool:
        """Return whether a module is a mixer that convolves and does nothing else with a state."""
        return super().known(module) and "update_recurrent_state" not in mixers.calls(module)

    def sizes(self, layer: Any) -> tuple[tuple[int, ...], ...]:
        """Return no size: there is no scan."""
        return ()
