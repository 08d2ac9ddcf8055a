"""Several threads use one model object at a time, each in its own way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from specframe_testing import harness, zoo
from transformers import PreTrainedModel

from specframe.contracts.requests import Result
from specframe.engine.guards.guard import longest_running
from specframe.model import decoder_layers

PATIENCE = 2.0
"""Seconds that one thread waits inside a forward for the other, which has none left at its end."""
LENGTHS = [9, 14, 3, 12, 7]


@contextlib.contextmanager
def meeting(model: PreTrainedModel) -> Iterator[threading.Barrier]:
    """Have two threads meet in each forward of the model, between two layers; who leaves for good aborts the barrier."""
    barrier = threading.Barrier(2)

    def meet(*_: Any) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(PATIENCE)

    layer = decoder_layers.decoder_layers(model)[1]
    handle = layer.register_forward_pre_hook(meet)
    try:
        yield barrier
    finally:
        handle.remove()


def side_by_side(model: PreTrainedModel, *tasks: Callable[[], Any]) -> list[Any]:
    """Return what two tasks return that run in two threads, forward by forward."""
    with meeting(model) as barrier, ThreadPoolExecutor(2) as pool:

        def run(task: Callable[[], Any]) -> Any:
            try:
                return task()
            finally:
                barrier.abort()

        return [future.result() for future in [pool.submit(run, task) for task in tasks]]


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:attention 'flex' holds all scores")
@pytest.mark.parametrize("ways", [({"attention": "masked"}, {"attention": "flex"})], ids=str)
def test_pipelines_do_not_see_each_other(ways: tuple[dict[str, str], dict[str, str]]) -> None:
    """Two pipelines on one model object, which attend and run layers in different ways at one time, are both exact."""
    target = zoo.build("mistral")
    prompts = [harness.random_prompts([3, 19, 1, 7, 12], zoo.VOCABULARY, seed=seed) for seed in range(2)]
    asked = [harness.requests(some, LENGTHS, {zoo.EOS}) for some in prompts]
    pipes = [harness.pipeline(target, None, batch_size=3, **way) for way in ways]
    for pipe, requests in zip(pipes, asked, strict=True):
        harness.decode(pipe, requests[:1])  # layers are compiled, and models tried, beforehand
    tasks = [
        lambda pipe=pipe, requests=requests: harness.decode(pipe, requests)
        for pipe, requests in zip(pipes, asked, strict=True)
    ]
    for requests, results in zip(asked, side_by_side(target, *tasks), strict=True):
        harness.assert_exact(target, requests, results)
    assert longest_running() is None
    assert target.config._attn_implementation == "sdpa"
    assert all("forward" not in vars(module) for module in target.modules())


@pytest.mark.wide
def test_rotary_factors_are_each_thread_s_own() -> None:
    """One pipeline reads long prompts with long factors while another reads short ones with short factors."""
    factors = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5, 2.0, 2.5], "factor": 4.0}
    factors |= {"long_factor": [4.0, 9.0, 2.0, 16.0], "original_max_position_embeddings": 24}
    target = zoo.build("phi3", rope_parameters=factors, original_max_position_embeddings=24)
    asked = [harness.requests(harness.random_prompts(some, zoo.VOCABULARY), 6) for some in ((3, 12, 9), (40, 61, 33))]
    wanted = [harness.decode(harness.pipeline(target), requests) for requests in asked]
    pipes = [harness.pipeline(target) for _ in asked]
    for pipe, requests in zip(pipes, asked, strict=True):
        harness.decode(pipe, requests[:1])  # the model is tried beforehand: that waits for forwards under way
    tasks = [
        lambda pipe=pipe, requests=requests: harness.decode(pipe, requests)
        for pipe, requests in zip(pipes, asked, strict=True)
    ]
    assert list(map(ids, side_by_side(target, *tasks))) == list(map(ids, wanted))


def ids(results: list[Result]) -> list[list[int]]:
    """Return the tokens of results."""
    return [result.token_ids for result in results]


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:attention 'flex' holds all scores")
def test_a_model_generates_while_a_pipeline_decodes() -> None:
    """Padded prompts that ``generate`` continues in one thread get their tokens while another thread decodes with the model."""
    target = zoo.build("qwen3")
    prompts_BT = torch.tensor(harness.random_prompts([9, 9], zoo.VOCABULARY, seed=2))
    mask_BT = torch.tensor([[1] * 9, [0] * 4 + [1] * 5])
    pipe = harness.pipeline(target, None, batch_size=3, attention="flex")
    asked = harness.requests(harness.random_prompts([3, 19, 1], zoo.VOCABULARY), 12)

    def generated() -> torch.Tensor:
        return target.generate(
            prompts_BT, attention_mask=mask_BT, do_sample=False, max_new_tokens=10, eos_token_id=None
        )

    wanted = generated()
    harness.decode(pipe, asked[:1])
    got, results = side_by_side(target, generated, lambda: harness.decode(pipe, asked))
    assert torch.equal(got, wanted)
    harness.assert_exact(target, asked, results)
