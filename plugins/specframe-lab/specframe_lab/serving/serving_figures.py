"""The figures of served requests, under the names of vLLM's ``bench serve``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from specframe_lab.serving.objectives import Objectives, holds

Served = dict[str, Any]
"""The moments of one request, as :class:`specframe_lab.serving.request_moments.Served` keeps them."""

PERCENTILES = (50, 90, 99)
PER_REQUEST = (
    *("ttft", "tpot", "e2el", "queue_time", "client_queue_time"),
    *("e2el_including_client_queue", "output_token_throughput_per_user"),
)
"""The figures that every request has one value of; of a request with one token, tpot and its inverse are not a number."""
METRICS = (*PER_REQUEST[:2], "itl", *PER_REQUEST[2:])


def of_request(served: Served) -> dict[str, float]:
    """Return the figures of one request, in seconds, and its tokens per second."""
    first, end, sent = served["chunks"][0], served["chunks"][-1], served["sent"]
    tokens = sum(served["tokens"])
    tpot = (end - first) / (tokens - 1) if tokens > 1 else math.nan
    return {
        "ttft": first - sent,
        "tpot": tpot,
        "e2el": end - sent,
        "queue_time": served["scheduled_at"] - sent,
        "client_queue_time": sent - served["arrival"],
        "e2el_including_client_queue": end - served["arrival"],
        "output_token_throughput_per_user": 1 / tpot if tpot else math.nan,
    }


def metrics(requests: Iterable[Served]) -> dict[str, list[float]]:
    """Return the values of every figure: one per request that has it, those of ``itl`` of all requests together.

    ``itl`` are the seconds between the chunks of a request: the tokens of one round come together, and are one chunk.
    """
    answered = [served for served in requests if served["chunks"]]
    each = [of_request(served) for served in answered]
    found = {name: [one[name] for one in each if not math.isnan(one[name])] for name in PER_REQUEST}
    found["itl"] = [after - before for served in answered for before, after in pairwise(served["chunks"])]
    return {name: found[name] for name in METRICS}


def summary(values: Sequence[float]) -> list[float]:
    """Return mean, P50, P90 and P99, the latter between two values in proportion; not a number without values."""
    if not values:
        return [math.nan] * (1 + len(PERCENTILES))
    return [float(np.mean(values)), *np.percentile(values, PERCENTILES).tolist()]


def rates(requests: Sequence[Served], wanted: Objectives | None = None) -> dict[str, float]:
    """Return the figures of all requests together, per second of the time from the start to the last one's end.

    Without objectives every request is good.
    """
    answered = [served for served in requests if served["chunks"]]
    duration = max((served["chunks"][-1] for served in answered), default=0.0)
    output = sum(sum(served["tokens"]) for served in answered)
    good = sum(holds(wanted or {}, of_request(served)) for served in answered)

    def per_second(count: float) -> float:
        return count / duration if duration else math.nan

    return {
        "duration": duration,
        "request_throughput": per_second(len(answered)),
        "output_throughput": per_second(output),
        "total_token_throughput": per_second(output + sum(served["prompt_tokens"] for served in answered)),
        "max_concurrent_requests": most_at_once(answered),
        "request_goodput": per_second(good),
        "good_request_fraction": good / len(requests) if requests else math.nan,
    }


def most_at_once(requests: Iterable[Served]) -> int:
    """Return the most requests that were in flight at a moment: sent, and not at their end."""
    changes = [change for served in requests for change in ((served["sent"], 1), (served["chunks"][-1], -1))]
    flying = np.cumsum([change for _, change in sorted(changes)])
    return int(flying.max(initial=0))
