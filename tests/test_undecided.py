"""A processor that leaves no token to choose, and logits that are no distribution, end their sequence, and no other."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from products import crossed
from specframe_testing import harness, zoo
from transformers import LogitsProcessor

from specframe import Sampling
from specframe.errors import SpecframeWarning

TARGET = zoo.build("llama", eos_token_id=None)
DRAFT = zoo.good_draft(TARGET)
PROMPTS = harness.random_prompts([4, 9, 2, 6], zoo.VOCABULARY)
NEW = 12
FAULTS = {"nan": float("nan"), "nothing": float("-inf"), "one nan": None}


class Breaks(LogitsProcessor):
    """Spoils the scores of the token that follows a number of tokens."""

    def __init__(self, length: int, fault: str) -> None:
        self._length, self._fault = length, FAULTS[fault]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] != self._length:
            return scores
        if self._fault is not None:
            return torch.full_like(scores, self._fault)
        scores = scores.clone()
        scores[:, -1] = float("nan")
        return scores


def samplings(after: int, fault: str, temperature: float = 0.0) -> list[Sampling]:
    """Return sampling parameters of which the second prompt's break after some generated tokens."""
    broken = Sampling(temperature=temperature, processors=(Breaks(len(PROMPTS[1]) + after, fault),))
    usual = Sampling(temperature=temperature)
    return [usual, broken, usual, usual]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("after", "fault", "align"), crossed((0, 1, 5), [*FAULTS], ("ragged", "eqspec", "exspec", "rollback"))
)
def test_greedily(after: int, fault: str, align: str) -> None:
    """The prompt keeps what it had; the others have the tokens they have anyway; the figures count one error."""
    expected = [harness.continuation(TARGET, prompt, NEW) for prompt in PROMPTS]
    pipe = harness.pipeline(TARGET, DRAFT, draft_length=4, batch_size=3, align=align)
    results = list(pipe.generate(PROMPTS, NEW, sampling=samplings(after, fault)))
    assert [result.finish_reason for result in results] == ["length", "error", "length", "length"]
    assert [result.token_ids for result in results] == [expected[0], expected[1][:after], *expected[2:]]
    assert "got nan, or minus infinity for every token" in str(results[1].error)
    assert (pipe.report.sequences, pipe.report.errors) == (3, 1)


@pytest.mark.wide
@pytest.mark.parametrize("rule", ["gumbel", "rejection", "block"])
def test_where_tokens_are_drawn(rule: str) -> None:
    """Rules that depend on a distribution end the prompt at the same place, and draw the others' tokens as ever."""
    pipe = harness.pipeline(TARGET, DRAFT, draft_length=4, batch_size=4, accept=rule)
    usual = [r.token_ids for r in pipe.generate(PROMPTS, NEW, sampling=Sampling(temperature=0.9))]
    results = list(pipe.generate(PROMPTS, NEW, sampling=samplings(3, "nan", 0.9)))
    assert [len(result.token_ids) for result in results] == [NEW, 3, NEW, NEW]
    assert [results[row].token_ids for row in (0, 2, 3)] == [usual[row] for row in (0, 2, 3)]


@pytest.mark.wide(but=["1.0"])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_checks_say_nothing_of_such_places(temperature: float) -> None:
    """With checks, too, a row without a token to choose ends with an error, and a token with an infinite score is chosen."""

    def processed(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] >= 8:
            return torch.full_like(scores, float("-inf"))
        return scores.index_fill(1, torch.tensor([ids.shape[1]]), float("inf"))

    for check in (False, True):
        pipe = harness.pipeline(TARGET, DRAFT, accept="gumbel", draft_length=3, check=check)
        how = Sampling(temperature=temperature, processors=(processed,))
        (result,) = pipe.generate([[1, 2, 3]], 9, sampling=how)
        assert (result.token_ids, result.finish_reason) == ([3, 4, 5, 6, 7], "error")


NAN = 40
"""The token whose embedding is nan; a model is tried on other tokens."""


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
OF_BROKEN = zoo.good_draft(BROKEN)
OF_NAN = harness.random_prompts([9, 4, 3, 6, 2, 5], 39, seed=3)


@pytest.mark.wide(but=["ragged", "exspec"])
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec", "rollback"])
def test_a_row_of_nan_leaves_the_others_and_those_after_it(align: str) -> None:
    """What a prompt of nan has written is seen by no row: not by others, and not by the sequence that has its row next."""
    prompts = [list(prompt) for prompt in OF_NAN]
    expected = [harness.continuation(BROKEN, prompt, NEW) for prompt in prompts]
    prompts[0][2] = NAN
    pipe = harness.pipeline(BROKEN, OF_BROKEN, draft_length=3, batch_size=2, align=align)
    results = list(pipe.generate(prompts, NEW))
    assert [result.finish_reason for result in results] == ["error"] + ["length"] * 5
    assert [result.token_ids for result in results] == [[], *expected[1:]]
    assert "the target's logits are no distribution" in str(results[0].error)


def test_a_drafter_of_nan_is_named_once() -> None:
    """A draft model whose logits become nan is named in one warning, and all tokens are the target's."""
    prompts = [[*prompt, NAN, 7] for prompt in OF_NAN]
    pipe = harness.pipeline(TARGET, OF_BROKEN, accept="block", draft_length=3, batch_size=2)
    with pytest.warns(SpecframeWarning, match=r"drafter 'model'.* got nan or infinity") as told:
        results = list(pipe.generate(prompts, NEW, sampling=Sampling(temperature=0.8)))
    assert len(told) == 1
    assert [result.finish_reason for result in results] == ["length"] * len(prompts)
    assert pipe.report.num_accepted_draft_tokens == 0


@pytest.mark.wide
@pytest.mark.parametrize("rule", ["rejection", "block", "gumbel"])
def test_it_ends_where_it_has_no_distribution(rule: str) -> None:
    """A row that comes to a token of nan keeps the tokens before it, under rules that draw as well."""
    prompt, forced = OF_NAN[0], 3

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
