"""Linear layers that read the same tensor are one product, over the same parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import architectures
import pytest
import torch
from specframe_std.layers import merged_weights, traces
from specframe_std.layers.merged_weights import packed, refusal
from specframe_std.layers.trace_check import require_agreement
from specframe_std.layers.traced_forward import TracedForward, trace
from specframe_testing import harness, zoo
from tracing import runner_of

from specframe.errors import SpecframeWarning


def products(found: TracedForward) -> int:
    """Return the number of distinct products of a traced forward."""
    return sum(
        node.target is torch.ops.aten.linear.default for piece in found.pieces for node in piece.graph.graph.nodes
    )


@pytest.mark.wide
@pytest.mark.parametrize(
    "name", ["opt", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3", "gemma3", "glm4"))]
)
def test_fewer_products_give_the_same(name: str) -> None:
    """Layers with biases and without are merged: logits, parameters and their bytes are what they were, in every piece."""
    model = zoo.build(name)
    runner, before = runner_of(model), {key: one.clone() for key, one in model.state_dict().items()}
    plain, merged = trace(runner), trace(runner, merges=True)
    assert products(merged) < products(plain)
    for one in (True, False):
        require_agreement(runner.tests, merged, one, one)
    after = model.state_dict()
    assert [*after] == [*before]
    assert all(torch.equal(after[key], one) for key, one in before.items())
    stored = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in model.parameters()}
    assert sum(stored.values()) == sum(one.nbytes for one in {id(one): one for one in model.parameters()}.values())


def test_products_with_operators_between_them_are_merged() -> None:
    """OLMo bounds each of queries, keys and values before the next are computed: the merged product comes before all of these."""
    runner = runner_of(architectures.build("olmo"))
    merged = trace(runner, merges=True)
    assert products(merged) < products(trace(runner))
    require_agreement(runner.tests, merged, False, False)


@pytest.mark.wide
def test_what_changes_is_seen() -> None:
    """A weight that is written to is the product's; one whose data are moved is not, which is noticed, and it is packed again."""
    model = zoo.build("opt", num_hidden_layers=1)
    runner, weight = runner_of(model), model.model.decoder.layers[0].self_attn.k_proj.weight
    first = trace(runner, merges=True)
    weight.data.mul_(3)
    assert first.holds
    require_agreement(runner.tests, first, False, False)
    weight.data = weight.data * -2
    assert not first.holds
    second = trace(runner, merges=True)
    assert second.holds
    require_agreement(runner.tests, second, False, False)


def test_what_there_is_no_memory_for_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out at the second group: the first stays merged, the others are products of their own."""
    runner, calls = runner_of(zoo.build("llama", num_hidden_layers=1)), list[int]()

    def runs_out(some: Any) -> torch.Tensor:
        calls.append(len(some))
        if len(calls) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return packed(some)

    monkeypatch.setattr(merged_weights, "packed", runs_out)
    found = trace(runner, merges=True)
    assert len(found.merged) == 1
    assert found.holds
    require_agreement(runner.tests, found, False, False)


def weights(change: Callable[[list[Any]], None] = lambda _: None) -> list[Any]:
    """Return three weights, after a change."""
    found = [torch.nn.Parameter(torch.randn(size, 4)) for size in (3, 5, 2)]
    change(found)
    return found


def test_weights_that_are_of_use_elsewhere_are_left() -> None:
    """Weights of another class, the same one twice, other types, strides, and views of a larger tensor."""
    assert refusal(weights()) is None
    assert refusal(weights(lambda found: found.__setitem__(1, torch.randn(3, 4)))) == "quantised"
    assert refusal(weights(lambda found: found.__setitem__(1, found[0]))) == "tied"
    assert refusal(weights(lambda found: found.__setitem__(1, torch.nn.Parameter(found[1].half())))) == "unlike"
    assert refusal(weights(lambda found: found.__setitem__(1, torch.nn.Parameter(torch.randn(4, 3).T)))) == "strided"
    assert refusal(weights(lambda found: found.__setitem__(1, torch.nn.Parameter(torch.randn(9, 4)[:3])))) == "shared"


@pytest.mark.wide
def test_a_model_on_a_cpu_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging is for devices that launch kernels; a trace in the middle of a run merges nowhere, as graphs may read the weights."""
    asked: list[bool] = []

    def traced(runner: Any, hidden: Any, merges: bool, writes: bool) -> TracedForward:
        asked.append(merges)
        return trace(runner, hidden)

    monkeypatch.setattr(traces, "trace", traced)
    pipe = harness.pipeline(zoo.build("opt", num_hidden_layers=1), None, layers="traced")
    harness.check(pipe, harness.requests([[1, 2, 3]], 2))
    assert asked == [False]


def test_what_cannot_be_merged_runs_as_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch raises an error while code is written anew, layers run as they are, and one warning says why."""

    def raises(*_: Any) -> TracedForward:
        raise RuntimeError("no product of these")

    monkeypatch.setattr(traces, "trace", raises)
    pipe = harness.pipeline(zoo.build("opt", num_hidden_layers=1), None, layers="compiled")
    with pytest.warns(SpecframeWarning, match="layers are not traced, and run eagerly: no product of these"):
        harness.check(pipe, harness.requests([[1, 2, 3]], 4))
