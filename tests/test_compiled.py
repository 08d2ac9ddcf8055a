"""Compiled layers give what eager layers give, from one graph for all layers of a kind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import architectures
import pytest
import torch
from specframe_testing import harness, zoo

from specframe.contracts.roles import Observer
from specframe.errors import ModelError, SpecframeWarning
from specframe.model import decoder_layers, runner
from specframe.model.model_checks import SelfTests
from specframe.model.runner import ModelRunner

COMPILED = pytest.mark.filterwarnings("error:.*layers are not compiled")
"""A test of layers that have to be compiled: eager ones have the same tokens."""
PROMPTS = harness.random_prompts([3, 19, 1, 7, 12], zoo.VOCABULARY)
LENGTHS = [9, 14, 3, 12, 7]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let torch.compile run the graphs it finds as they are, and collect them."""
    found: list[Any] = []

    def collect(graph: Any, inputs: Any) -> Any:
        found.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(decoder_layers, "BACKEND", collect)
    return found


SLOW = ("mistral", "gpt2", "gemma3", *(("llama", "phi3") if os.environ.get("SPECFRAME_FULL_MATRIX") == "1" else ()))
"""Windows, learned positions, and windows in some layers; Llama and Phi-3 are like Mistral without windows."""


@pytest.mark.wide
@COMPILED
@pytest.mark.parametrize(
    "name",
    [
        "opt",  # its layers are compiled in half of the time
        *(pytest.param(name, marks=[pytest.mark.slow, *[pytest.mark.nightly] * (name != "mistral")]) for name in SLOW),
    ],
)
def test_tokens_are_the_reference_decoder_s(graphs: list[Any], name: str) -> None:
    """Draft and target run compiled: what is decoded is exact."""
    target = zoo.build(name)
    pipe = harness.pipeline(target, zoo.good_draft(target), batch_size=3, draft_length=3, layers="compiled")
    harness.check(pipe, harness.requests(PROMPTS, LENGTHS, {zoo.EOS}))
    assert graphs


@COMPILED
@pytest.mark.parametrize(("name", "most"), [("opt", 4), pytest.param("gemma3", 8, marks=pytest.mark.slow)])
def test_a_graph_serves_all_masks(graphs: list[Any], name: str, most: int) -> None:
    """Prompts, rounds and single rows have masks of unlike strides, in one kind of layer and in two, and take no further graphs."""
    options = {"drafter": "prompt-lookup", "layers": "compiled", "graphs": "on"}
    pipe = harness.pipeline(zoo.build(name), batch_size=3, draft_length=3, **options)
    harness.check(pipe, harness.requests(PROMPTS, LENGTHS, {zoo.EOS}))
    assert 2 <= len(graphs) <= most


@pytest.mark.wide
def test_layers_that_compute_their_masks_run_eagerly(graphs: list[Any]) -> None:
    """They see the lengths of keys alone that are not in the cache yet; a warning says so, and the tokens are exact."""
    target = zoo.build("opt")
    for layer in target.model.decoder.layers:
        layer.forward = computes_its_mask(layer.forward)
    pipe = harness.pipeline(target, None, batch_size=3, layers="compiled")
    with pytest.warns(
        SpecframeWarning,
        match="layers are not compiled, and run eagerly: expected layers that hand their mask on as it is",
    ):
        harness.check(pipe, harness.requests(PROMPTS, LENGTHS, {zoo.EOS}))


def test_layers_whose_logits_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN is no agreement: no comparison with it holds."""
    tests = ModelRunner(zoo.build("opt"), "target")._tests

    def fed(self: SelfTests, _: Any, options: Any = None) -> torch.Tensor:
        return torch.arange(4.0) * (float("nan") if options else 1.0)

    monkeypatch.setattr(SelfTests, "_fed", fed)
    with pytest.raises(ModelError, match="compiled layers are off by nan"):
        tests.require_agreement(object())  # type: ignore[arg-type]


def computes_its_mask(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a layer's ``forward`` that makes another mask of the one it is given."""

    def other(*arguments: Any, attention_mask: torch.Tensor | None = None, **options: Any) -> Any:
        made = None if attention_mask is None else attention_mask + 0.0
        return forward(*arguments, attention_mask=made, **options)

    return other


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", ["doge", "falcon", "diffllama", "deepseek_v3"])
def test_architectures_that_cannot_be_compiled_are_exact(graphs: list[Any], name: str) -> None:
    """They make masks of values, attend by themselves, repeat values after they were written, or expand keys and values there."""
    target = architectures.build(name)
    pipe = harness.pipeline(target, zoo.good_draft(target), batch_size=3, draft_length=3, layers="compiled")
    with pytest.warns(SpecframeWarning, match="layers are not compiled"):
        harness.check(pipe, harness.requests(PROMPTS, LENGTHS, {zoo.EOS}))


@pytest.mark.wide
def test_layers_that_cannot_be_compiled_run_eagerly(graphs: list[Any]) -> None:
    """A warning says why, and the tokens are the same."""
    model = zoo.build("qwen3")
    model.set_attn_implementation("eager")
    pipe = harness.pipeline(model, None, layers="compiled")
    with pytest.warns(RuntimeWarning, match="the target's layers are not compiled, and run eagerly: .* eager"):
        harness.check(pipe, harness.requests(PROMPTS, LENGTHS, {zoo.EOS}))
    assert not graphs


def test_compiling_is_no_time_of_decoding(graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of target and draft model are compiled, or found not to compile, before the first stage of the first round."""
    seen: list[str] = []

    def fails(graph: Any, inputs: Any) -> Any:
        seen.append("compiler")
        raise RuntimeError("no compiler\nmore of it")

    class Stages(Observer):
        def enter(self, stage: str) -> None:
            seen.append(stage)

    monkeypatch.setattr(decoder_layers, "BACKEND", fails)
    target = zoo.build("opt")
    pipe = harness.pipeline(target, zoo.good_draft(target), layers="compiled", observers=[Stages()])
    with pytest.warns(SpecframeWarning, match="layers are not compiled, and run eagerly: .*no compiler") as told:
        harness.check(pipe, harness.requests(PROMPTS[:2], 4))
    assert [line for line in map(str, (one.message for one in told)) if "\n" in line] == []
    assert seen.count("compiler") >= 2
    assert "compiler" not in seen[next(at for at, what in enumerate(seen) if what != "compiler") :]


def test_layers_that_disagree_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that gets it wrong is found out before anything is decoded."""
    monkeypatch.setattr(
        decoder_layers, "BACKEND", lambda graph, inputs: lambda *given: [1.1 * x for x in graph(*given)]
    )
    torch._dynamo.reset()
    with pytest.warns(RuntimeWarning, match="not compiled, and run eagerly: .* off by"):
        assert ModelRunner(zoo.build("opt"), "target").compiled_layers is None


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_tokens_are_exact_when_compiled(name: str) -> None:
    """The same with torch's own compiler."""
    torch._dynamo.reset()
    target = zoo.build(name)
    pipe = harness.pipeline(target, zoo.good_draft(target), batch_size=3, draft_length=3, layers="compiled")
    harness.check(pipe, harness.requests(PROMPTS, LENGTHS, {zoo.EOS}))
    assert ModelRunner(target, "target").compiled_layers is not None


@pytest.mark.wide
@pytest.mark.cuda
@pytest.mark.parametrize("graph", ["on", "off"])
def test_tokens_are_exact_on_cuda(graph: str) -> None:
    """Compiled layers give the reference's tokens in fp32, captured or not."""
    target = zoo.build("qwen3").to("cuda")
    pipe = harness.pipeline(
        target, zoo.good_draft(target), batch_size=3, draft_length=3, layers="compiled", graphs=graph
    )
    harness.check(pipe, harness.requests(PROMPTS, LENGTHS, {zoo.EOS}))


@pytest.mark.slow
def test_auto_compiles_when_it_pays(graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As many layers run eagerly as compiling is worth, over several runs of a pipeline; then they are compiled."""
    pipe = harness.pipeline(zoo.build("qwen3"), None, batch_size=3, layers="auto")
    asked = harness.requests(PROMPTS, LENGTHS, {zoo.EOS})
    feeds = harness.Feeds()
    harness.check(harness.pipeline(zoo.build("qwen3"), None, batch_size=3, observers=[feeds]), asked)
    monkeypatch.setattr(runner, "COMPILING_PAYS", 2 * len(feeds.rounds))
    harness.check(pipe, asked)
    assert not graphs
    harness.check(pipe, asked)
    assert graphs
