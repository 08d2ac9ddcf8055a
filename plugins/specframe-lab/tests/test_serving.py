"""Requests as a client of a server sees them: exact figures on a clock that advances one second per pass of the target."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specframe_lab.arrival_times import arrival_times, check
from specframe_lab.serving.bench_service import BenchService, PassClock
from specframe_lab.serving.objectives import objectives
from specframe_lab.serving.serving_figures import metrics, most_at_once, rates, summary
from specframe_testing import harness
from specframe_testing.fakes import fake_target

from specframe.engine.local_engine import Local
from specframe.errors import OptionError

PAIR = [[1, 2], [3, 4]]


def served(
    prompts: list[list[int]], new: int, arrivals: list[float] | None = None, most: int | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Return the moments of requests that are decoded on the clock of passes."""
    service = BenchService(Local(), most, PassClock)
    pipe = harness.pipeline(fake_target(eos=60), **{"batch_size": 2, **options}, executor=service)
    list(pipe.generate(prompts, new, arrivals=arrivals))
    return service.moments.lines()


@pytest.mark.wide
def test_requests_that_decode_together():
    """Two read by the first pass, a third that arrives at 10: each takes three passes."""
    requests = served([*PAIR, [5, 6]], 3, [0, 0, 10])
    assert [one["chunks"] for one in requests] == [[1, 2, 3], [1, 2, 3], [11, 12, 13]]
    found = metrics(requests)
    assert (found["ttft"], found["tpot"], found["itl"], found["e2el"]) == ([1] * 3, [1] * 3, [1] * 6, [3] * 3)
    assert found["queue_time"] == found["client_queue_time"] == [0] * 3
    assert found["output_token_throughput_per_user"] == [1] * 3
    assert rates(requests) == {
        "duration": 13,
        "request_throughput": 3 / 13,
        "output_throughput": 9 / 13,
        "total_token_throughput": 15 / 13,
        "max_concurrent_requests": 2,
        "request_goodput": 3 / 13,
        "good_request_fraction": 1,
    }


@pytest.mark.wide
def test_a_request_of_one_token_has_no_tpot():
    """It keeps every objective of tpot, as in vLLM."""
    requests = served([[1, 2]], 1)
    found = metrics(requests)
    assert (found["ttft"], found["e2el"], found["tpot"], found["itl"]) == ([1], [1], [], [])
    assert rates(requests, objectives("tpot:1"))["request_goodput"] == 1
    assert all(map(math.isnan, summary(found["tpot"])))


def test_a_request_that_ends_when_another_is_sent_is_not_in_flight_with_it():
    def flown(sent: float, end: float) -> dict[str, Any]:
        return {"sent": sent, "chunks": [end]}

    assert most_at_once([flown(0, 2), flown(2, 3), flown(2.5, 4)]) == 2
    assert most_at_once([flown(0, 2), flown(2, 3)]) == 1
    assert most_at_once([]) == 0


@pytest.mark.wide
@pytest.mark.parametrize(
    ("slo", "good"),
    [("ttft:1000,tpot:1100", 0), ("ttft:1500,tpot:1200,e2el:6999.9", 1), ("ttft:1500,tpot:1200,e2el:7000", 2)],
)
def test_a_request_is_good_when_it_keeps_all_objectives(slo: str, good: int):
    """Of the two of above: ttft 1 and 1.5, tpot 1.2 and 1, e2el 7 and 6.5 seconds."""
    found = rates(served(PAIR, 6, [0, 1.5]), objectives(slo))
    assert (found["request_goodput"], found["good_request_fraction"]) == (good / 8, good / 2)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", r"expected ttft, tpot, e2el with milliseconds, as in 'ttft:200,tpot:50,e2el:3000', got ''$"),
        ("ttft", r"got 'ttft'$"),
        ("tpot:0", r"^tpot: expected milliseconds, a number above 0, got '0'$"),
        ("ttft:1,ttft:2", r"^ttft is given twice: expected one value, got 'ttft:1,ttft:2'$"),
    ],
)
def test_objectives_that_are_none(given: str, message: str):
    with pytest.raises(OptionError, match=message):
        objectives(given)


@pytest.mark.wide
def test_requests_can_be_aborted_whether_they_were_sent_or_not():
    from specframe.contracts.requests import Request

    service = BenchService(Local(), 1, PassClock)
    pipe = harness.pipeline(fake_target(eos=60), batch_size=2)
    engine = service.open(pipe.recipe, pipe.parts, [], PassClock())
    for index in range(3):
        engine.add(Request(index, [1, 2], 3))
    engine.step()
    assert engine.abort((0, 0)).request.index == 0
    assert engine.abort((1, 0)).request.index == 1
    assert engine.abort((7, 0)) is None
    while not engine.idle:
        engine.step()
    engine.close()
    requests = service.moments.served
    assert sorted(requests) == [(0, 0), (2, 0)]
    assert requests[2, 0].chunks == [2, 3, 4]


def gaps(moments: list[float]) -> np.ndarray:
    return np.diff([0, *moments])


@pytest.mark.wide
@pytest.mark.parametrize(("strategy", "rising"), [("linear", [1, 1 / 2, 1 / 3]), ("exponential", [1, 3**-0.5, 1 / 3])])
def test_a_ramp_goes_from_one_rate_to_the_other_request_by_request(strategy: str, rising: list[float]):
    given = f"constant:1,ramp-up-strategy={strategy},ramp-up-end-rps=3"
    assert gaps(arrival_times(given, 3)) == pytest.approx(rising)
    assert arrival_times(given, 1) == [1]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("poisson:1e-300", "expected a rate of at least 1e-06 in requests per second, as in 'poisson:2', got '1e-300'"),
        ("gamma:2,burstiness=0", "burstiness: expected a number of at least 0.01, got 0"),
        ("poisson:2,burstiness=3", "poisson has no option 'burstiness': expected ramp-up-end-rps, ramp-up-strategy"),
        ("gamma:2,ramp-up-strategy=linear", "expected ramp-up-strategy and ramp-up-end-rps together"),
        ("gamma:2,ramp-up-strategy=x,ramp-up-end-rps=3", "ramp-up-strategy: expected linear or exponential, got 'x'"),
        ("gamma:2,ramp-up-strategy=linear,ramp-up-end-rps=0", "ramp-up-end-rps: expected a number of at least 1e-06"),
        ("uniform:2", "expected poisson:RATE, gamma:RATE, constant:RATE or a file of seconds"),
    ],
)
def test_a_pattern_that_is_none(given: str, message: str):
    with pytest.raises(OptionError) as caught:
        check(given)
    assert str(caught.value).startswith(f"arrivals: {message}")


@pytest.mark.wide
def test_a_trace_gives_its_timestamps_from_the_first_on(tmp_path: Path):
    """Lines as Mooncake publishes them; of more lines than prompts the first are taken."""
    line = {"input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
    moments = (27_000, 27_500, 30_000)
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"timestamp": moment, **line}) + "\n" for moment in moments))
    check(str(path))
    assert arrival_times(str(path), 3) == [0, 0.5, 3]
    assert arrival_times(str(path), 2) == [0, 0.5]
    with pytest.raises(OptionError, match="holds 3 numbers: expected 4, one for each prompt"):
        arrival_times(str(path), 4)


@pytest.mark.wide
@pytest.mark.parametrize("line", ['{"timestamp": -1}', '{"input_length": 3}', "{"])
def test_a_line_that_is_of_no_trace(tmp_path: Path, line: str):
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"timestamp": 0}}\n{line}\n')
    wanted = "line 2: expected an object with a timestamp in milliseconds, 0 or more, got"
    with pytest.raises(OptionError, match=wanted):
        check(str(path))
