"""Windowed drafting: the target drafts on few keys of its own cache.

StreamingLLM, Xiao et al. 2023 (arXiv 2309.17453); MagicDec, Chen et al. 2024 (arXiv 2408.11049).
"""

from __future__ import annotations

from typing import cast

from transformers import PreTrainedModel

from specframe.contracts.model import Model
from specframe.model.runner import ModelRunner
from specframe.value_checks import whole
from specframe_std.drafters.self_drafting import SelfDrafter, require_one_device
from specframe_std.partial.window_runner import WindowRunner

SINK = 4
"""First tokens that are seen by default: StreamingLLM's authors find that four hold what attention puts on tokens of no use."""

RECENT = 512
"""Last tokens that are seen by default: MagicDec's authors draft with windows of 512 for prompts of 4,000 to 100,000 tokens."""


class Window(SelfDrafter):
    """Proposes the target's own choices where it sees the first tokens of each row and the last ones alone.

    Any target drafts so without training, and draft and target have one cache: a draft's forward reads ``sink`` + ``recent`` keys
    of a row, however long it is, so it pays for long rows. A row that is not longer than that is drafted for as the target itself
    decodes it. Positions are those of the tokens in their row, and prompts are read by the target, which sees all of them.

    Options:
        sink: first tokens of a row that are seen.
        recent: last tokens that are seen, that whose successor is drafted included. A tree's nodes see the last ones before the
            tree's root, the root included, and those of their own path.
        tree: "chain", "static" or "dynamic", as the drafter "model" has them; also ``branch``, ``nodes`` and ``top``.
    """

    needs: frozenset[str] = frozenset({"share", "gather"})

    def __init__(
        self,
        sink: int = SINK,
        recent: int = RECENT,
        tree: str = "chain",
        branch: str | int | None = None,
        nodes: int | None = None,
        top: int | None = None,
    ) -> None:
        super().__init__(tree, branch, nodes, top)
        self._sink, self._recent = whole("sink", sink, 0), whole("recent", recent, 1)

    def part(self, target: Model) -> ModelRunner:
        """Return the target with a window."""
        require_one_device(target, "window")
        return WindowRunner(cast(PreTrainedModel, target.module), "draft", self._sink, self._recent)
