"""Layer skipping: the target drafts with some of its sublayers left out.

Draft & Verify, Zhang et al. 2023 (arXiv 2309.08168); SWIFT, Xia et al. 2024 (arXiv 2410.06916).
"""

from __future__ import annotations

from typing import cast

from transformers import PreTrainedModel

from specframe.contracts.model import Model
from specframe.model.runner import ModelRunner
from specframe_std.drafters.self_drafting import SelfDrafter, require_one_device
from specframe_std.partial.part_runner import PartRunner
from specframe_std.partial.sublayers import KINDS, Sublayer, read_sublayers, text_layers, without_sublayers


class LayerSkip(SelfDrafter):
    """Proposes the choices of the target with chosen sublayers left out: the attention or the MLP of some layers.

    Any target drafts so without training, and draft and target have one cache. How well depends on which sublayers are left out:
    ``specframe heads search-skip`` searches them.

    Options:
        skip: the sublayers left out, as in attn:3-7+9+mlp:5, with layers numbered from 0; without it attention and MLP of every
            second layer between the first and the last.
        tree: "chain", "static" or "dynamic", as the drafter "model" has them; also ``branch``, ``nodes`` and ``top``.
    """

    def __init__(
        self,
        skip: str | None = None,
        tree: str = "chain",
        branch: str | int | None = None,
        nodes: int | None = None,
        top: int | None = None,
    ) -> None:
        super().__init__(tree, branch, nodes, top)
        self._skip = None if skip is None else read_sublayers("skip", skip)

    def part(self, target: Model) -> ModelRunner:
        """Return the target without the sublayers that are left out."""
        require_one_device(target, "layer-skip")
        model = cast(PreTrainedModel, target.module)
        skip = every_second(len(text_layers(model))) if self._skip is None else self._skip
        return PartRunner(model, without_sublayers(model, skip, str(target)), "draft")


def every_second(layers: int) -> frozenset[Sublayer]:
    """Return both sublayers of every second layer between the first and the last, SWIFT's first set; of the last of two layers."""
    return frozenset(Sublayer(kind, number) for kind in KINDS for number in range(1, max(2, layers - 1), 2))
