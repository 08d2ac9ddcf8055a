"""The figures of a report against their formulas, on a trace of ten rounds made by hand, and the oracle bound on any trace."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from specframe_lab.comparison.comparison_observers import Positions, Rounds
from specframe_lab.comparison.comparison_results import Comparison
from specframe_lab.comparison.comparison_tables import tables
from specframe_lab.comparison.oracle import ALL
from specframe_lab.comparison.schemes import Case
from specframe_lab.comparison.summary import bounded

Trace = list[tuple[int, int]]
"""The draft tokens of each round of a continuation, and the accepted ones. Its first token came with its prompt."""
FIRST: Trace = [(3, 3), (3, 0), (3, 1), (3, 2), (3, 3), (2, 2)]
SECOND: Trace = [(3, 0), (3, 1), (3, 0), (3, 3)]
PROMPT = [7, 7, 7]


def tokens(trace: Trace) -> int:
    """Return the tokens of a continuation."""
    return 1 + sum(stood + 1 for _, stood in trace)


def observed(traces: list[Trace]) -> tuple[Positions, Rounds]:
    """Return the observers of a run of these rounds, one row at a time."""
    positions, rounds = Positions(), Rounds()
    number = 0
    for index, trace in enumerate(traces):
        limit = len(PROMPT) + tokens(trace)
        row = SimpleNamespace(limit=limit, request=SimpleNamespace(index=index, prompt_ids=PROMPT))
        length = len(PROMPT)
        for drafted, stood in [(0, 0), *trace]:
            number += 1
            given = {"drafted": drafted, "accepted": stood, "gained": stood + 1, "lengths": length}
            told = {name: np.array([value]) for name, value in given.items()}
            first = length == len(PROMPT)
            depth = 0 if first else 3 * bool(drafted)
            report: Any = SimpleNamespace(number=number, sequences=[row], prefill=first, depth=depth, **told)
            positions.round(report)
            rounds.round(report)
            length += stood + 1
    return positions, rounds


def line(traces: list[Trace], stages: dict[str, float], **more: Any) -> dict[str, Any]:
    """Return the line of a run with these rounds and seconds."""
    positions, rounds = observed(traces)
    seconds, count = sum(stages.values()), sum(map(tokens, traces))
    stood = [sum(one for _, one in trace) for trace in traces]
    timed = {stage: 0.5 * spent for stage, spent in stages.items()}  # stages do not hold all of a run
    figures = {"seconds": seconds, "stage_seconds": timed, "tokens": count, "tokens_per_second": count / seconds}
    figures |= {"mean_acceptance_length": 1 + sum(stood) / sum(map(len, traces)), "acceptance_histogram": {}}
    return {
        "lossless": True,
        "figures": figures,
        "drafted_by_position": positions.drafted.tolist(),
        "accepted_by_position": positions.accepted.tolist(),
        "reached_by_position": positions.reached.tolist(),
        "spec_steps": [len(trace) if any(drafted for drafted, _ in trace) else 0 for trace in traces],
        "accepted": stood,
        "rounds": rounds.lines(len(traces)),
        "token_ids": [[index] * tokens(trace) for index, trace in enumerate(traces)],
        "tokens_digest": "same",
        "latencies": [1.0],
        "longest_wait": 0,
        **more,
    }


def made(runs: dict[str, dict[str, Any]]) -> Comparison:
    """Return a comparison of one run of each scheme at batch size 1."""
    cases = []
    for name in runs:
        cell = {"drafter": "none" if name == "plain" else name, "batch_size": 1, "dtype": "float32", "target": "t"}
        cases.append(Case(name, cell, plain=name == "plain"))
    about = {"settings": {}, "categories": [["math", 1], ["math", 2]]}
    return Comparison(about, cases, {case.key: {0: runs[case.scheme]} for case in cases})


STAGES = {"prefill": 1.0, "draft": 2.9, "verify": 5.0, "accept": 1.0, "align": 0.5, "schedule": 0.5}
HAND_MADE = made(
    {
        # 27 tokens: two came with prompts, and each of 25 others took 0.6 s
        "plain": line([[(0, 0)] * 17, [(0, 0)] * 8], {"prefill": 1.0, "verify": 15.0}),
        # ten rounds of 0.7 s, and 29 draft tokens of 0.1 s
        "model": line([FIRST, SECOND], STAGES),
        # 19 rounds of 0.7 s, and 23 draft tokens of 0.1 s
        "other": line([[(1, 0)] * 17, [(3, 3), (3, 3)]], {"prefill": 1.0, "draft": 2.3, "verify": 13.3}),
    }
)


def rows(name: str, scheme: str = "model") -> list[tuple[Any, ...]]:
    """Return the rows of one scheme in a figure, without its name and the batch size."""
    return [row[2:] for row in tables(HAND_MADE)[name].rows if row[0] == scheme]


def test_lengths_of_a_trace() -> None:
    """Tokens over rounds weigh each of ten rounds alike, the mean of turns each of two turns; the category has both turns."""
    assert rows("acceptance_length")[0][0] == 1 + 15 / 10
    mean = ((1 + 11 / 6) + (1 + 4 / 4)) / 2
    assert rows("acceptance_by_turn") == [("all", 2, pytest.approx(mean)), ("math", 2, pytest.approx(mean))]
    assert rows("acceptance_by_category")[:2] == [("math", 1, 1, 1 + 11 / 6), ("math", 2, 1, 1 + 4 / 4)]
    assert rows("acceptance_by_turn", "plain") == []


def test_acceptance_by_position_of_a_trace() -> None:
    """Joint acceptance is of all drafts that have room, conditional acceptance of those accepted up to there."""
    assert rows("acceptance_by_position") == [(1, 10, 7, 7 / 10), (2, 10, 5, 5 / 10), (3, 9, 3, 3 / 9)]
    assert rows("conditional_acceptance") == [(1, 10, 7, 7 / 10), (2, 7, 5, 5 / 7), (3, 4, 3, 3 / 4)]


def test_speed_and_stages_of_a_trace() -> None:
    """The speed-up is the ratio of tokens per second, and a stage's share that of its seconds."""
    assert rows("speed_up")[0][0] == pytest.approx(16.0 / 10.9)
    shares = {row[0]: row[1] for row in rows("stage_shares")}
    assert shares == pytest.approx({stage: seconds / 10.9 for stage, seconds in STAGES.items()})


def test_oracle_of_a_trace() -> None:
    """Each round drafts what is accepted; plain rounds replace those of all schemes in which nothing was, by the token."""
    own = 27 / (1 + (6 * 0.7 + 11 * 0.1) + (4 * 0.7 + 4 * 0.1))
    assert rows("oracle") == [pytest.approx((27 / 10.9, own, own * 10.9 / 27, own * 16 / 27))]
    every = 27 / (1 + (5 * 0.7 + 0.6 + 11 * 0.1) + (2 * 0.7 + 6 * 0.1))
    assert rows("oracle", ALL) == [pytest.approx((27 / 10.9, every, every * 10.9 / 27, every * 16 / 27))]
    (said,) = bounded(tables(HAND_MADE))
    assert said.endswith(
        f"at most {own * 16 / 27:.2f} times as fast as plain decoding, and with the best scheme for each "
        f"{every * 16 / 27:.2f} times."
    )


def random_trace(random: Random, length: int) -> Trace:
    """Return rounds of a continuation of ``length`` tokens, none of which draft beyond its end."""
    found: Trace = []
    left = length - 1
    while left > 0:
        drafted = random.randint(0, min(random.randint(0, 6), left - 1))
        stood = random.randint(0, drafted)
        found.append((drafted, stood))
        left -= stood + 1
    return found


@pytest.mark.parametrize("seed", range(8))
def test_no_run_is_faster_than_its_oracle(seed: int) -> None:
    """Whatever a trace and its seconds are, a scheme's own bound is at least its speed, and all together at least the fastest's."""
    random = Random(seed)
    lengths = [random.randint(1, 30) for _ in range(4)]
    runs = {}
    for name in ("plain", "a", "b", "c"):
        traces = [[(0, 0)] * (n - 1) if name == "plain" else random_trace(random, n) for n in lengths]
        runs[name] = line(traces, {stage: random.random() for stage in STAGES})
    found = tables(made(runs))["oracle"].rows
    assert [row[0] for row in found] == ["a", "b", "c", ALL]
    for scheme, _, rate, bound, times, _ in found:
        assert bound >= rate * (1 - 1e-9), scheme
        assert times == pytest.approx(bound / rate)
    assert found[-1][2] == max(run["figures"]["tokens_per_second"] for run in runs.values())
    assert found[-1][3] >= max(row[3] for row in found) * (1 - 1e-9)


def test_other_tokens_are_not_taken_together() -> None:
    """Drafts of a continuation that differs from plain decoding's are of other tokens: none of them count for all together."""
    lossy = line([[(3, 3)] * 4, [(3, 3)] * 2], {"prefill": 1.0, "verify": 3.0}, token_ids=[[9] * 17, [8] * 9])
    runs = {case.scheme: HAND_MADE.lines[case.key][0] for case in HAND_MADE.cases}
    found = {row[0]: row[3] for row in tables(made({**runs, "lossy": lossy}))["oracle"].rows}
    assert found[ALL] == pytest.approx(rows("oracle", ALL)[0][1])
    assert found["lossy"] > found[ALL]
