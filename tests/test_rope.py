"""Rotary factors that depend on the longest position: every row has those that ``generate`` gives it alone."""

from __future__ import annotations

import functools
from typing import Any

import architectures
import pytest
import torch
from specframe_lab.grid import checked, expand
from specframe_lab.verify import verify
from specframe_std.graphs import captured_rounds
from specframe_testing import harness, zoo
from transformers import PreTrainedModel

from specframe import assisted
from specframe.contracts.requests import Request
from specframe.errors import SpecframeWarning

BOUNDARY = 24
"""Tokens up to which the models of these tests take short factors."""

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [4.0, 9.0, 2.0, 16.0],
    "original_max_position_embeddings": BOUNDARY,
    "factor": 4.0,
}
SHORT, LONG = (3, 19, 1, 12, 16), (BOUNDARY + 1, 40, 61)


@functools.cache
def model(name: str) -> PreTrainedModel:
    """Return a model whose factors change."""
    if name == "phi3":
        return zoo.build("phi3", rope_parameters=dict(LONGROPE), original_max_position_embeddings=BOUNDARY)
    if name == "phimoe":
        scales = {"short_mscale": 1.1, "long_mscale": 1.3}
        return architectures.build("phimoe", rope_parameters={**LONGROPE, **scales})
    parts = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    return zoo.build("llama", rope_parameters=parts, max_position_embeddings=BOUNDARY)


def asked(lengths: tuple[int, ...], new: int = 6) -> list[Request]:
    """Return requests of these lengths."""
    return harness.requests(harness.random_prompts(lengths, zoo.VOCABULARY, seed=3), new)


def generated(target: PreTrainedModel, request: Request, new: int) -> list[int]:
    """Return what transformers' ``generate`` gives a prompt alone."""
    ids_1T = torch.tensor([request.prompt_ids])
    output = target.generate(
        ids_1T, attention_mask=torch.ones_like(ids_1T), do_sample=False, max_new_tokens=new, eos_token_id=None
    )
    return output[0, len(request.prompt_ids) :].tolist()


def pipeline(target: PreTrainedModel, **options: Any) -> harness.Pipeline:
    """Return a pipeline with a draft that overshoots."""
    return harness.pipeline(target, zoo.good_draft(target), **{"batch_size": 3, "draft_length": 4, **options})


@pytest.mark.wide(but=["phi3-{}"])
@pytest.mark.parametrize(
    "options",
    [{}, {"align": "eqspec"}, {"align": "exspec"}, {"graphs": "on"}, {"drafter": None}, {"drafter": "early-exit"}],
    ids=str,
)
@pytest.mark.parametrize("name", ["phi3", "phimoe"])
def test_short_rows_beside_long_ones_are_exact(name: str, options: dict[str, Any]) -> None:
    """Rows on both sides of the boundary, in one batch, have the reference's tokens and those of ``generate`` alone."""
    target = model(name)
    requests = asked((3, 40, 19, BOUNDARY + 1, 1, 61, 12))
    results = harness.check(pipeline(target, **options), requests)
    for request, result in zip(requests, results, strict=True):
        assert result.token_ids == generated(target, request, 6)


def test_a_captured_round_knows_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of the other kind, in the place of one that was there when rounds were captured, has its own factors."""
    monkeypatch.setattr(captured_rounds, "ROUNDS", 1)
    target, prompts = model("phi3"), [request.prompt_ids for request in asked((3, 30, 32))]
    requests = [Request(index, ids, new) for index, (ids, new) in enumerate(zip(prompts, (6, 12, 6), strict=True))]
    pipe = pipeline(target, drafter=None, graphs="on", batch_size=2)
    for result, request in zip(harness.decode(pipe, requests), requests, strict=True):
        assert result.token_ids == generated(target, request, request.max_new_tokens)


def test_unlike_rows_share_no_blocks() -> None:
    """A long prompt that begins as a short one does has blocks of its own, and the next of its kind begins with them."""
    target, (short, long) = model("phi3"), asked((16, BOUNDARY + 8))
    like = Request(1, short.prompt_ids + long.prompt_ids[:16], 6)
    pipe = pipeline(target, kv="paged,share=on,block=4", batch_size=2)
    expected = [generated(target, request, 6) for request in (short, like)]
    for _ in range(2):
        assert [result.token_ids for result in harness.decode(pipe, [short, like])] == expected
    assert pipe.report.figures()["prefix_hit_tokens"] > BOUNDARY


@pytest.mark.wide(but=["20-6-False", "24-1-True"])
@pytest.mark.parametrize(("length", "new", "fits"), [(20, 5, True), (20, 6, False), (BOUNDARY, 1, True)])
def test_a_sequence_may_reach_the_boundary(length: int, new: int, fits: bool) -> None:
    """Its last token is never fed, so one token more than short factors are for is still exact, and two are refused."""
    target, requests = model("phi3"), asked((length,), new)
    result = harness.decode(pipeline(target), requests)[0]
    assert (result.error is None) == fits
    assert not fits or result.token_ids == generated(target, requests[0], new)


@pytest.mark.wide
@pytest.mark.parametrize("call", ["generate", "as_completed", "stream"])
def test_a_prompt_that_may_cross_fails_alone(call: str) -> None:
    """It has an error with the numbers, and the others their tokens."""
    pipe = pipeline(model("phi3"))
    prompts = [request.prompt_ids for request in asked((3, 20, 40))]
    results = [getattr(one, "result", one) for one in getattr(pipe, call)(prompts, 6)]
    results = sorted((one for one in results if one is not None), key=lambda one: one.index)
    assert [result.finish_reason for result in results] == ["length", "error", "length"]
    assert results[1].error == (
        "the prompt has 20 tokens and may grow to 26, and the rotary factors of the target (Phi3ForCausalLM) change beyond "
        "24: expected at most 5 new tokens, or a prompt of more than 24 tokens"
    )
    assert pipe.report.errors == 1


@pytest.mark.wide
def test_assisted_generation_crosses_without_drafts() -> None:
    """``generate`` with specframe's assistance drafts on either side, and crosses without drafts."""
    target = model("phi3")
    draft = zoo.good_draft(target)
    for lengths in (SHORT[:1], LONG[:1]):
        request = asked(lengths)[0]
        ids_1T = torch.tensor([request.prompt_ids])
        options = {
            "attention_mask": torch.ones_like(ids_1T),
            "max_new_tokens": 6,
            "do_sample": False,
            "eos_token_id": None,
        }
        output = target.generate(ids_1T, **options, custom_generate=assisted(draft, 3))
        assert output[0, ids_1T.shape[1] :].tolist() == generated(target, request, 6)
    request = asked((20,))[0]
    ids_1T = torch.tensor([request.prompt_ids])
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    with pytest.warns(SpecframeWarning, match="rotary factors that change"):
        output = target.generate(ids_1T, **options, custom_generate=assisted(draft, 3))
    assert output[0, 20:].tolist() == generated(target, request, 6)


@pytest.mark.wide
def test_verify_names_a_prompt_that_may_cross() -> None:
    """It counts as a fault of the combination, not as tokens that part from the reference's."""
    target = model("phi3")
    grid = checked(expand({"target": target, "drafter": [zoo.good_draft(target)], "batch_size": 3, "draft_length": 4}))
    found = list(verify(grid, [request.prompt_ids for request in asked((3, 20))], 6))
    assert [str(one.fault) for one in found] == [
        "prompt 1: the prompt has 20 tokens and may grow to 26, and the rotary factors of the target (Phi3ForCausalLM) change "
        "beyond 24: expected at most 5 new tokens, or a prompt of more than 24 tokens"
    ]


@pytest.mark.wide
@pytest.mark.parametrize("grown", [False, True])
def test_dynamic_factors_are_those_of_the_context(grown: bool) -> None:
    """Dynamic NTK scales beyond the context alone, where nothing is decoded, even if the model has just read more tokens."""
    target, requests = model("llama"), asked((3, 20, BOUNDARY - 1, 12), 9)
    if grown:
        target(torch.ones(1, 3 * BOUNDARY, dtype=torch.long))
    results = harness.check(pipeline(target), requests)
    for request, result in zip(requests, results, strict=True):
        new = min(9, BOUNDARY - len(request.prompt_ids))
        assert result.token_ids == generated(target, request, new)
