"""Short convolutions in the place of attention, whose window is all that is kept of a row's tokens: LFM2 and its successors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from specframe_std.states import mixers
from specframe_std.states.mixers import MixerKind


class ShortConvolution(MixerKind):
    """The short convolutions of LFM2 and its successors."""

    scan = mixers.CONVOLVE

    def layers(self, model: torch.nn.Module) -> Mapping[int, torch.nn.Module]:
        """Return the mixers that convolve and do nothing else with a state."""
        return {
            number: module
            for number, module in super().layers(model).items()
            if "update_recurrent_state" not in mixers.calls(module)
        }

    def sizes(self, layer: Any) -> tuple[tuple[int, ...], ...]:
        """Return no size: there is no scan."""
        return ()
