"""Short chains of layers with states run as pieces, and give what the modules give; all else is left to the modules."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import architectures
import pytest
import torch
from specframe_std.layers import traces
from specframe_std.layers.state_calls import StateCall
from specframe_std.layers.trace_check import require_agreement
from specframe_std.layers.traced_forward import TracedForward, trace
from specframe_testing import harness, zoo
from tracing import layers_of, runner_of

NAMES = "qwen3_5_text falcon_h1 kimi_linear lfm2 lfm3 mamba2 nemotron_h olmo_hybrid zamba2 zaya"
KINDS = [*filter(architectures.known, NAMES.split())]
LOOPING = ("mamba", "jamba", "minimax")
"""Models whose scans are a loop over the tokens."""
PROMPTS = harness.random_prompts([3, 9, 1, 7, 12], zoo.VOCABULARY)
ASKED = harness.requests(PROMPTS, [9, 14, 3, 12, 7], {zoo.EOS})
CASES = [(one_row, one_token) for one_row in (True, False) for one_token in (True, False)]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls of layers with states as pieces, and as modules."""
    found, one, module = Counter[str](), StateCall.__call__, StateCall.as_module

    def counted(self: StateCall, *given: Any) -> Any:
        found["all"] += 1
        return one(self, *given)

    def counted_module(self: StateCall, *given: Any) -> Any:
        found["modules"] += 1
        return module(self, *given)

    monkeypatch.setattr(StateCall, "__call__", counted)
    monkeypatch.setattr(StateCall, "as_module", counted_module)
    return found


@pytest.mark.wide(but=["mamba2"])
@pytest.mark.parametrize("name", KINDS)
def test_a_layer_is_a_piece_that_equal_ones_share(name: str) -> None:
    """A layer with a state is a piece for any rows and tokens; equal ones share it, with weights of their own."""
    runner = runner_of(architectures.build(name))
    found = trace(runner)
    assert found.states
    assert len({one.text for one in found.states}) == 1
    assert found.states[0].text
    for case in CASES:
        require_agreement(runner.tests, found, *case)
    module: Any = found.states[-1].module
    weight = next(one for one in module.modules() if isinstance(one, torch.nn.Linear))
    weight.weight.data.mul_(2)
    require_agreement(runner.tests, found, False, False)
    weight.weight = torch.nn.Parameter(weight.weight.detach() * 2)
    require_agreement(runner.tests, found, False, False)
    code = {piece.text: piece.graph.forward for piece in found.pieces}
    found.take(code)
    assert all(one.run == code[one.text] for one in found.states)
    require_agreement(runner.tests, found, False, False)


@pytest.mark.wide(but=["minimax"])
@pytest.mark.parametrize("name", LOOPING)
def test_code_for_one_number_of_tokens_is_not_used(name: str) -> None:
    """A layer whose code would hold for as many tokens as were traced is called as it is."""
    runner = runner_of(architectures.build(name))
    found = trace(runner)
    assert [one.text for one in found.states] == [""] * len(found.states)
    for case in CASES:
        require_agreement(runner.tests, found, *case)


@pytest.mark.wide(but=["lfm2-ragged-3"])
@pytest.mark.parametrize("length", [0, 1, 3])
@pytest.mark.parametrize("align", ["ragged", "exspec"])
@pytest.mark.parametrize("name", KINDS)
def test_chains(called: Counter[str], name: str, align: str, length: int) -> None:
    """Drafts and their verification, and prompts of few tokens, run as pieces: what is decoded is exact."""
    target = architectures.build(name)
    drafter = {"draft_length": length} if length else {}
    draft = zoo.good_draft(target) if length else None
    pipe = harness.pipeline(target, draft, batch_size=3, align=align, layers="traced", **drafter)
    harness.check(pipe, ASKED)
    assert called["modules"] < called["all"] / 2


def test_trees_are_left_to_modules(called: Counter[str]) -> None:
    """What is verified of a tree is computed by modules, and what is decoded is exact."""
    target = architectures.build("lfm2")
    pipe = harness.pipeline(
        target, zoo.build("llama"), drafter="model,branch=2/1/1", batch_size=3, layers="traced", draft_length=3
    )
    harness.check(pipe, ASKED)
    assert 0 < called["modules"] < called["all"]


COMPILES = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@pytest.mark.wide(but=["traced-lfm2"])
@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2", "mamba2"])
@pytest.mark.parametrize("layers", ["traced", pytest.param("compiled", marks=COMPILES)])
def test_a_draft_model_drafts_what_it_does_as_modules(
    called: Counter[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layers: str, name: str
) -> None:
    """A draft model's steps go on from each other in pieces, compiled or not: as many are accepted as with modules."""
    monkeypatch.setattr(traces, "cache_dir", lambda: tmp_path)
    target = architectures.build(name)
    draft, accepted = zoo.good_draft(target, noise=0.1), list[int]()
    for how in ("eager", layers):
        pipe = harness.pipeline(target, draft, batch_size=3, draft_length=3, layers=how)
        harness.check(pipe, ASKED)
        accepted.append(pipe.report.num_accepted_draft_tokens)
    assert accepted[0] == accepted[1] > 0
    assert called["modules"] < called["all"]


def test_rows_with_padding_after_their_state_are_left_to_modules(called: Counter[str]) -> None:
    """Of two prompts read together one begins with cached tokens: its padding follows a state, which pieces would change."""
    target = architectures.build("lfm2")
    pipe = harness.pipeline(target, None, batch_size=2, kv="paged,share=on", layers="traced")
    first, other = harness.random_prompts([40, 12], zoo.VOCABULARY)
    harness.check(pipe, harness.requests([first], 3))
    called.clear()
    harness.check(pipe, harness.requests([[*first[:35], 5, 6, 7], other], 5))
    assert 0 < called["modules"] < called["all"]


def test_many_tokens_are_left_to_modules(called: Counter[str]) -> None:
    """A prompt of more tokens than a piece holds for is read by the module's own scan, which goes in chunks."""
    target = architectures.build("lfm2")
    pipe = harness.pipeline(target, None, batch_size=2, layers="traced")
    harness.check(pipe, harness.requests(harness.random_prompts([23, 30], zoo.VOCABULARY), 1))
    assert called["modules"] == 1, "the layer with a state, for all of the prompts"
    harness.check(pipe, harness.requests(harness.random_prompts([22], zoo.VOCABULARY), 4))
    assert called["modules"] == 1


def test_layers_of_other_settings_have_pieces_of_their_own() -> None:
    """A number that one of two layers computes with, and that no weight shows, is its own."""
    model = architectures.build("mamba2")
    first, second = (layer.mixer for layer in model.backbone.layers[:2])
    second.time_step_limit = (0.0, 0.05)
    assert first.time_step_limit != second.time_step_limit
    runner = runner_of(model)
    found = trace(runner)
    assert len({one.text for one in found.states}) == 2
    require_agreement(runner.tests, found, False, False)


@pytest.mark.wide(but=["other outputs"])
@pytest.mark.parametrize("fault", ["other outputs", "an error"])
def test_a_piece_that_is_wrong_is_given_up_alone(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Where a trace with pieces of states disagrees with the modules, these layers alone are called as they are."""
    usual = TracedForward.__call__

    def call(self: TracedForward, *given: torch.Tensor) -> Any:
        for one in self.states:
            if one.run is not None and not hasattr(one.run, "planted"):
                one.run = planted(one.run, fault)
        return usual(self, *given)

    monkeypatch.setattr(TracedForward, "__call__", call)
    runner = runner_of(architectures.build("lfm2"))
    found = layers_of(runner, "traced", 2, 2)
    assert [one.run for one in found.states] == [None] * len(found.states)


def planted(run: Any, fault: str) -> Any:
    """Return a function that computes something else, or raises."""

    def wrong(*given: Any) -> Any:
        if fault == "an error":
            raise RuntimeError("planted")
        first, *others = run(*given)
        return first * 2, *others

    wrong.planted = True  # type: ignore[attr-defined]
    return wrong
