"""Figures in Prometheus' form, under vLLM's names where vLLM has them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import FinishReason
from specframe.contracts.roles import Observer

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Bounds of the buckets of latencies in seconds: from a token of a small model to a long answer of a large one."""


class Metrics(Observer):
    """Counts rounds, in the engine's thread, and requests, in the server's.

    Args:
        model: the name under which the target is served, the label ``model_name``.
    """

    def __init__(self, model: str) -> None:
        self._registry, self._label = CollectorRegistry(), {"model_name": model}
        self.prompts = self._made(Counter, "vllm:prompt_tokens", "Tokens of prompts read.")
        self._hits = self._made(
            Counter, "vllm:prefix_cache_hits", "Tokens of prompts that were not fed, since they were cached."
        )
        self._tokens = self._made(Counter, "vllm:generation_tokens", "Tokens generated.")
        self._drafts = self._made(Counter, "vllm:spec_decode_num_drafts", "Drafts of rows that were verified.")
        self._drafted = self._made(Counter, "vllm:spec_decode_num_draft_tokens", "Draft tokens verified.")
        self._accepted = self._made(Counter, "vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.")
        self._places = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by their place in the draft.",
            ["model_name", "position"],
            registry=self._registry,
        )
        self.running = self._made(Gauge, "vllm:num_requests_running", "Sequences in the latest round.")
        self.waiting = self._made(Gauge, "vllm:num_requests_waiting", "Sequences that wait for a row.")
        self._success = Counter(
            "vllm:request_success",
            "Sequences that ended, by the reason.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        first, whole = "From a request's coming to its first token.", "From a request's coming to its end."
        self._first = self._made(Histogram, "vllm:time_to_first_token_seconds", first, buckets=SECONDS)
        self._whole = self._made(Histogram, "vllm:e2e_request_latency_seconds", whole, buckets=SECONDS)

    def _made(self, kind: type[Any], name: str, meaning: str, **more: Any) -> Any:
        """Return a figure of the model."""
        return kind(name, meaning, ["model_name"], registry=self._registry, **more).labels(**self._label)

    def round(self, report: RoundReport) -> None:
        """Count a round of the engine."""
        self._tokens.inc(int(report.gained.sum()))
        self.running.set(len(report.sequences))
        self._hits.inc(sum(one.metrics.prefix_hit_tokens for one in report.finished))
        drafting = report.drafted > 0
        self._drafts.inc(int(drafting.sum()))
        self._drafted.inc(int(report.drafted.sum()))
        self._accepted.inc(int(report.accepted.sum()))
        for place, count in enumerate(np.bincount(report.accepted)[::-1].cumsum()[::-1][1:].tolist()):
            self._places.labels(**self._label, position=place).inc(count)

    def request(self) -> Timer:
        """Return a timer for a request that has just come."""
        return Timer(self._first, self._whole)

    def ended(self, reason: FinishReason) -> None:
        """Count a sequence that has ended."""
        self._success.labels(**self._label, finished_reason=reason).inc()

    def text(self) -> bytes:
        """Return all figures in Prometheus' text form."""
        return generate_latest(self._registry)


class Timer:
    """Measures a request's time to the first token and to its end."""

    def __init__(self, first: Histogram, whole: Histogram) -> None:
        self._first, self._whole, self._came, self._told = first, whole, time.monotonic(), False

    def token(self) -> None:
        """Note tokens; the first ones count."""
        if not self._told:
            self._first.observe(time.monotonic() - self._came)
            self._told = True

    def end(self) -> None:
        """Note the end."""
        self._whole.observe(time.monotonic() - self._came)
