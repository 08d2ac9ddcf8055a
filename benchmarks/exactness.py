"""Whether what was decoded is the reference decoder's, token for token, and whether rounding explains what is not."""

from __future__ import annotations

import copy
import time

import attrs
import torch
from contenders import Models
from specframe_lab.verify import common_start
from specframe_testing.instrumentation.ties import Scales

from specframe.reference import reference_decode

LARGE = 2_000_000_000
"""Parameters from which a model is weighed in float32 rather than float64, for which there is no memory."""


@attrs.frozen
class Exactness:
    """How many continuations are the reference's; of the others, how many part at a tie and how many do not.

    ``unweighed`` ones part somewhere that there was no time, or no memory, to look at.
    """

    compared: int
    exact: int
    ties: int
    bugs: int
    unweighed: int

    def __str__(self) -> str:
        rest = [f"{count} {what}" for what in ("ties", "bugs", "unweighed") if (count := getattr(self, what))]
        return ", ".join([f"{self.exact}/{self.compared}", *rest])


class Judge:
    """The reference decoder's continuations of the first prompts, and the scales for what differs from them."""

    def __init__(self, models: Models, prompts: list[list[int]], new: int) -> None:
        self._prompts = prompts
        self._expected = [reference_decode(models.target, prompt, new, models.stops) for prompt in prompts]
        self._large = sum(weight.numel() for weight in models.target.parameters()) > LARGE
        self._target = models.target
        self._scales = Scales(models.target)
        self._weighed: dict[tuple[int, int, int], bool] = {}

    def compare(self, got: list[list[int]], deadline: float) -> Exactness:
        """Compare continuations of the first prompts; those that part after ``deadline`` (``perf_counter``) are not weighed."""
        pairs = list(zip(got, self._expected, strict=False))
        found = {"exact": 0, "ties": 0, "bugs": 0, "unweighed": 0}
        for index, (ids, expected) in enumerate(pairs):
            found[self._kind(index, ids, expected, deadline)] += 1
        return Exactness(len(pairs), **found)

    def _kind(self, index: int, ids: list[int], expected: list[int], deadline: float) -> str:
        if ids == expected:
            return "exact"
        place = common_start(ids, expected)
        if place == min(len(ids), len(expected)):
            return "bugs"  # one has ended where the other goes on
        key = index, place, ids[place]
        if key not in self._weighed:
            if time.perf_counter() > deadline:
                return "unweighed"
            both = [expected[place], ids[place]]
            try:
                self._weighed[key] = self._ready().weigh([*self._prompts[index], *ids[:place]], both).tie
            except torch.OutOfMemoryError:  # the scales are larger than the model
                return "unweighed"
        return "ties" if self._weighed[key] else "bugs"

    def _ready(self) -> Scales:
        if self._large and self._scales._copy is None:
            with torch.inference_mode(False):
                self._scales._copy = copy.deepcopy(self._target).float()
        return self._scales
