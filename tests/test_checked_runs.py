"""A run with checks runs its models as it would without."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from specframe.forward import compiled, graphs
from specframe.forward.attention import choice
from specframe.forward.runner import ModelRunner
from specframe.testing import harness, zoo

PROMPTS = harness.random_prompts([3, 19, 1, 7], zoo.VOCABULARY)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note each recording that is made, and each forward: whose, how it attends, and whether its layers are compiled."""
    noted: list[Any] = []
    usual = ModelRunner.forward

    class Noted(graphs.EagerRecording):
        def __init__(self, function: Callable[[], Any]) -> None:
            noted.append("recording")
            super().__init__(function)

    def forward(self: ModelRunner, *arguments: Any, **options: Any) -> Any:
        given = inspect.signature(usual).bind(self, *arguments, **options).arguments
        how = given["how"]
        attention = "auto" if isinstance(how.attention, tuple) else choice.title(how.attention)
        noted.append((self.role, attention, how.layers == "compiled"))
        return usual(self, *arguments, **options)

    monkeypatch.setattr(ModelRunner, "forward", forward)
    monkeypatch.setitem(graphs.RECORDINGS, "on", lambda device: Noted)
    monkeypatch.setattr(compiled, "BACKEND", lambda graph, _inputs: graph.forward)
    torch._dynamo.reset()
    return noted


@pytest.mark.filterwarnings("ignore:attention 'flex' holds all scores")
@pytest.mark.parametrize(
    ("options", "shows"),
    [
        ({"graphs": "on"}, "recording"),
        ({"graphs": "on", "align": "eqspec", "kv": "slab"}, "recording"),
        pytest.param({"layers": "compiled"}, ("target", "auto", True), marks=pytest.mark.slow),
        ({"attention": "flex"}, ("draft", "flex", False)),
    ],
    ids=str,
)
def test_what_is_checked_is_what_runs(options: dict[str, str], shows: Any, log: list[Any]) -> None:
    """With and without checks, the same forwards are recorded and run, in the same way and order, and the tokens are exact."""
    target = zoo.build("qwen3")
    asked = harness.requests(PROMPTS, [9, 14, 3, 12], {zoo.EOS})
    logs = []
    for check in (False, True):
        log.clear()
        pipe = harness.pipeline(
            target, zoo.good_draft(target), batch_size=2, draft_length=3, schedule="continuous", check=check, **options
        )
        harness.check(pipe, asked)
        logs.append([*log])
    assert logs[0] == logs[1]
    assert shows in logs[0]
