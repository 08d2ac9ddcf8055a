"""A target whose logits are no distribution ends the sequence with an error, and no other."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from specframe_testing import harness, zoo

from specframe import Sampling
from specframe.errors import SpecframeWarning

TARGET = zoo.build("llama", eos_token_id=None)
NAN = 40
"""The token whose embedding is nan; a model is tried on other tokens."""
NEW = 10


def broken(model: Any) -> Any:
    """Return a copy of a model in which one token has nan in its embedding, and a logit of 0."""
    made = copy.deepcopy(model)
    embedding = made.get_input_embeddings()
    table = embedding.weight.detach().clone()
    head = made.get_output_embeddings()
    head.weight = torch.nn.Parameter(table.clone() if head.weight is embedding.weight else head.weight.detach().clone())
    with torch.no_grad():
        head.weight[NAN] = 0
        table[NAN] = float("nan")
        embedding.weight = torch.nn.Parameter(table)
    return made


BROKEN = broken(TARGET)
DRAFT = zoo.good_draft(BROKEN)
PROMPTS = harness.random_prompts([9, 4, 3, 6, 2, 5], 39, seed=3)


@pytest.mark.wide(but=["ragged", "exspec"])
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec", "rollback"])
def test_a_row_of_nan_leaves_the_others_and_those_after_it(align: str) -> None:
    """What a prompt of nan has written is seen by no row: not by others, and not by the sequence that has its row next."""
    prompts = [list(prompt) for prompt in PROMPTS]
    expected = [harness.continuation(BROKEN, prompt, NEW) for prompt in prompts]
    prompts[0][2] = NAN
    pipe = harness.pipeline(BROKEN, DRAFT, draft_length=3, batch_size=2, align=align)
    results = list(pipe.generate(prompts, NEW))
    assert [result.finish_reason for result in results] == ["error"] + ["length"] * 5
    assert [result.token_ids for result in results] == [[], *expected[1:]]
    assert "the target's logits are no distribution" in str(results[0].error)


def test_a_drafter_of_nan_is_named_once() -> None:
    """A draft model whose logits become nan is named in one warning, and all tokens are the target's."""
    prompts = [[*prompt, NAN, 7] for prompt in PROMPTS]
    pipe = harness.pipeline(TARGET, DRAFT, accept="block", draft_length=3, batch_size=2)
    with pytest.warns(SpecframeWarning, match=r"drafter 'model'.* got nan or infinity") as told:
        results = list(pipe.generate(prompts, NEW, sampling=Sampling(temperature=0.8)))
    assert len(told) == 1
    assert [result.finish_reason for result in results] == ["length"] * len(prompts)
    assert pipe.report.num_accepted_draft_tokens == 0


@pytest.mark.wide
@pytest.mark.parametrize("rule", ["rejection", "block", "gumbel"])
def test_it_ends_where_it_has_no_distribution(rule: str) -> None:
    """A row that comes to a token of nan keeps the tokens before it, under rules that draw as well."""
    prompt, forced = PROMPTS[0], 3

    def force(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] != len(prompt) + forced:
            return scores
        return torch.full_like(scores, float("-inf")).index_fill(1, torch.tensor([NAN]), 0.0)

    pipe = harness.pipeline(BROKEN, None, accept=rule, seed=4)
    usual, ended = (
        next(pipe.generate([prompt], NEW, sampling=Sampling(temperature=0.8, processors=given)))
        for given in ((), (force,))
    )
    assert ended.finish_reason == "error"
    assert ended.token_ids == [*usual.token_ids[:forced], NAN]
