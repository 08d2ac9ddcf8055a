"""The oracle bound: how fast a run could have been, had it known beforehand how many draft tokens of each round are accepted.

After SpecDecode-Bench (arXiv 2601.11580). A row whose next tokens a drafter proposed rightly can be given as many of them as were
accepted, and no wrong one: a round then costs what a round of that run took for a row, and for each draft token what one took
there. The bound of all schemes takes at every token the scheme that comes to the end soonest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from specframe_lab.comparison.comparison_results import Comparison, Line
from specframe_lab.comparison.schemes import Case

Round = Sequence[int]
"""Tokens of a continuation before the round, its draft tokens, and the accepted ones. A prefill has
:data:`READING` draft tokens, and last the tokens that the row gained."""
ORACLE = ("scheme", "batch_size", "tokens_per_second", "bound", "times", "over_plain")
READING, FREE = -1, -1
"""Mark of a round that read prompts, whose seconds are those of reading, and of the tokens that came with it."""
ALL = "best of all"
"""The name of the bound that takes the best scheme for each row and round."""


@attrs.frozen
class Costs:
    """Seconds of a run: of reading prompts, of a round for each row, and of each draft token."""

    prefill: float
    round: float
    token: float


def costs(figures: Mapping[str, Any], rounds: Iterable[Iterable[Round]]) -> Costs:
    """Return the seconds of a run by what they were spent on; those of all its continuations' rounds and draft tokens add up to the
    run's.
    """
    every = [one for of_one in rounds for one in of_one if one[1] != READING]
    drafted = sum(one[1] for one in every)
    stages = dict(figures["stage_seconds"])
    scale = figures["seconds"] / (sum(stages.values()) or 1.0)
    prefill, drafting = (stages.pop(stage, 0.0) * scale for stage in ("prefill", "draft"))
    others = sum(stages.values()) * scale + (0.0 if drafted else drafting)
    return Costs(prefill, others / max(len(every), 1), drafting / drafted if drafted else 0.0)


def reach(rounds: Iterable[Round], length: int) -> np.ndarray:
    """Return how many tokens after each place of a continuation were proposed rightly, from there on or from before.

    Tokens that came with the reading of prompts are :data:`FREE`.
    """
    found = np.zeros(length, dtype=np.int64)
    for start, drafted, count in rounds:
        for place in range(start, min(start + count, length)):
            free = drafted == READING or found[place] == FREE
            found[place] = FREE if free else max(found[place], start + count - place)
    return found


def least_seconds(length: int, drafts: Sequence[tuple[np.ndarray, Costs]]) -> float:
    """Return the fewest seconds for a continuation by drafts of one or several schemes, each with the tokens that it reaches."""
    left = [0.0] * (length + 1)
    for place in range(length - 1, -1, -1):
        if any(reached[place] == FREE for reached, _ in drafts):
            left[place] = left[place + 1]
            continue
        left[place] = min(
            cost.round + tokens * cost.token + left[min(place + tokens + 1, length)]
            for reached, cost in drafts
            for tokens in range(int(reached[place]) + 1)
        )
    return left[0]


def oracle(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return each scheme's tokens per second in its first run and their bound, then for each batch size that of all together.

    All together are lossless schemes, of each continuation those that gave plain decoding's tokens.
    """
    rows: list[tuple[Any, ...]] = []
    groups: dict[tuple[Any, ...], list[tuple[Case, Line]]] = {}
    for case in comparison.timed:
        line = comparison.runs(case).get(0, {})
        if line.get("rounds") and line["figures"]["seconds"]:
            groups.setdefault((*case.setting, case.batch_size), []).append((case, line))
    for found in groups.values():
        plain = next((line["figures"]["tokens_per_second"] for case, line in found if case.plain), math.nan)
        for case, line in found:
            if not case.plain:
                bound = together([line], line["token_ids"])
                rows.append(told(case.scheme, case, line["figures"]["tokens_per_second"], bound, plain))
        lossless = [line for _, line in found if line["lossless"]]
        reference = next((line["token_ids"] for case, line in found if case.plain), None)
        if reference and len(lossless) > 2:  # plain decoding is one of them
            fastest = max(line["figures"]["tokens_per_second"] for line in lossless)
            rows.append(told(ALL, found[0][0], fastest, together(lossless, reference), plain))
    return rows


def told(scheme: str, case: Case, rate: float, bound: float, plain: float) -> tuple[Any, ...]:
    """Return the row of one bound."""
    return (
        scheme,
        case.batch_size,
        rate,
        bound,
        bound / rate if rate else math.nan,
        bound / plain if plain else math.nan,
    )


def together(lines: Sequence[Line], token_ids: Sequence[Sequence[int]]) -> float:
    """Return the most tokens per second for these continuations, by the drafts of runs that gave the same ones."""
    spent = [costs(line["figures"], line["rounds"]) for line in lines]
    seconds = min(cost.prefill for cost in spent)
    for index, ids in enumerate(token_ids):
        same = [place for place, line in enumerate(lines) if line["token_ids"][index] == ids]
        drafts = [(reach(lines[place]["rounds"][index], len(ids)), spent[place]) for place in same]
        seconds += least_seconds(len(ids), drafts)
    return sum(map(len, token_ids)) / seconds if seconds else math.nan
