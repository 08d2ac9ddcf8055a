"""The calls of logits processors: one for each formula that rows have in common.

Tensor names carry their shape: B rows, T places of a row at which scores are shaped, R places of all rows, L tokens that are shown,
V vocabulary. A place has the number ``row * T + place``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from collections.abc import Sequence as Rows
from typing import Any

import numpy as np
import torch

from specframe.contracts.requests import ProcessorKind, SamplingPlan
from specframe.devices.kinds import constant
from specframe.text.prefixes import Prefixes
from specframe.text.processor_formulas import FORMULAS, Formula, Reads

MOST_SHOWN = 2**22
"""Token ids that one call is shown at most; what goes beyond takes further calls."""


def process(plans: Rows[SamplingPlan], prefixes: Prefixes, scores_BTV: torch.Tensor) -> torch.Tensor:
    """Return scores put through each row's processors; ``scores_BTV``, float32 and contiguous, is written to."""
    if scores_BTV.shape[:2] == (1, 1):  # of plain decoding, and of a drafter's steps, of one row
        ids_1L, scores_1V = prefixes.exact(0), scores_BTV[0]
        for processor, kind in zip(plans[0].processors, plans[0].kinds, strict=True):
            made_1V = processor(ids_1L, scores_1V)
            if kind is None:
                scores_1V[0] = made_1V[0]
            else:
                scores_1V = made_1V
        return scores_1V[None]
    part = ProcessorPart(scores_BTV.flatten(0, 1))
    for kind, processors in turns(plans):
        if kind is None:
            for row, processor in processors.items():
                part.each(processor, prefixes, row)
            continue
        for processor, places, ids_RL in calls(kind, processors, prefixes):
            part.apply(processor, places, ids_RL)
    return part.whole.view_as(scores_BTV)


class ProcessorPart:
    """The scores of all places, which are written to; those of the latest call are taken out until other ones are wanted.

    Calls that follow one another mostly have the same places.
    """

    def __init__(self, scores_RV: torch.Tensor) -> None:
        self._scores_RV = self._part_RV = scores_RV
        self._all = self._places = np.arange(len(scores_RV))

    @property
    def whole(self) -> torch.Tensor:
        """The scores of all places."""
        self._turn_to(self._all)
        self._scores_RV = self._part_RV
        return self._scores_RV

    def apply(self, processor: Any, places: np.ndarray, ids_RL: torch.Tensor) -> None:
        """Call a processor for some places, in ascending order."""
        self._turn_to(places)
        self._part_RV = processor(ids_RL, self._part_RV)

    def each(self, processor: Any, prefixes: Prefixes, row: int) -> None:
        """Call a processor for each place of a row by itself, with its exact prefix."""
        scores_RV = self.whole
        for place in range(row * prefixes.count, (row + 1) * prefixes.count):
            scores_RV[place] = processor(prefixes.exact(place), scores_RV[place][None])[0]

    def _turn_to(self, places: np.ndarray) -> None:
        """Put the part back, and take out that of other places."""
        if places is self._places or np.array_equal(places, self._places):
            return
        device = self._scores_RV.device
        if len(self._places) == len(self._all):
            self._scores_RV = self._part_RV
        else:
            self._scores_RV.index_copy_(0, constant(tuple(self._places.tolist()), device), self._part_RV)
        self._places, self._part_RV = places, self._scores_RV
        if len(places) < len(self._all):
            self._part_RV = self._scores_RV[constant(tuple(places.tolist()), device)]


def turns(plans: Rows[SamplingPlan]) -> Iterator[tuple[ProcessorKind | None, dict[int, Any]]]:
    """Yield what is to be applied next, in the order of each row's plan, and in few turns.

    Yields:
        A kind, and the processors of this kind by row, rows in ascending order.
    """
    rows: dict[tuple[ProcessorKind | None, ...], list[int]] = {}
    for row, plan in enumerate(plans):
        if plan.kinds:
            rows.setdefault(plan.kinds, []).append(row)
    done = dict.fromkeys(rows, 0)
    while heads := {kinds: kinds[place] for kinds, place in done.items() if place < len(kinds)}:
        later = {kind for kinds in heads for kind in kinds[done[kinds] + 1 :]}
        kind = next((head for head in heads.values() if head not in later), next(iter(heads.values())))
        now = [kinds for kinds, head in heads.items() if head == kind]
        yield (
            kind,
            {row: plans[row].processors[done[kinds]] for row, kinds in sorted((r, k) for k in now for r in rows[k])},
        )
        for kinds in now:
            done[kinds] += 1


Call = tuple[Any, np.ndarray, torch.Tensor]
"""A processor, the places that it is called for, and the token ids that it is shown, (R, L)."""


def calls(kind: ProcessorKind, processors: Mapping[int, Any], prefixes: Prefixes) -> Iterator[Call]:
    """Yield the calls that apply the processors of one kind, by row."""
    formula, first = FORMULAS[kind.formula], next(iter(processors.values()))
    if formula.reads in (Reads.COUNT, Reads.TAIL):
        yield from by_effect(formula, processors, prefixes)
        return
    rows = np.array(list(processors))
    places = (rows[:, None] * prefixes.count + np.arange(prefixes.count)).ravel()
    if formula.reads is Reads.NOTHING:
        yield first, places, prefixes.blank(len(places), 1)
        return
    since = np.repeat([formula.since(one) for one in processors.values()], prefixes.count)
    lengths = prefixes.lengths.ravel()[places]
    places, since = places[lengths > since], since[lengths > since]
    most = int(lengths.max())
    step = max(1, MOST_SHOWN // most)
    for begin in range(0, len(places), step):
        some = slice(begin, begin + step)
        ordered = formula.reads is Reads.ORDER
        ids_RL = prefixes.ids(places[some], most) if ordered else prefixes.occurring(places[some], since[some])
        yield formula.called(first), places[some], ids_RL


def by_effect(formula: Formula, processors: Mapping[int, Any], prefixes: Prefixes) -> Iterator[Call]:
    """Yield a call for each effect, made of the first processor that has it."""
    found: dict[Hashable, tuple[Any, int, list[int]]] = {}
    for row, processor in processors.items():
        for place, length in enumerate(prefixes.lengths[row].tolist(), row * prefixes.count):
            if (effect := formula.effect(processor, length)) is not None:
                found.setdefault(effect, (processor, length, []))[2].append(place)
    for effect, (processor, length, alike) in found.items():
        places = np.array(alike)
        if formula.reads is Reads.TAIL and isinstance(effect, int):
            yield processor, places, prefixes.ids(places, effect)
        else:
            yield processor, places, prefixes.blank(len(places), length)
