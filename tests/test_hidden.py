"""Hidden states that are asked for are those of transformers, of every token fed, however forwards are run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from specframe_std.graphs.kept_graphs import ModelGraphs
from specframe_testing import fakes, harness, zoo
from transformers import PreTrainedModel

from specframe.contracts.drafts import Block
from specframe.contracts.model import ForwardOptions
from specframe.contracts.round import Batch
from specframe.errors import ModelError
from specframe.model.attention import choice
from specframe.model.cached import CachedModel

PROMPTS = harness.random_prompts([5, 14, 1, 9], zoo.VOCABULARY)


def layers_of(model: PreTrainedModel) -> int:
    """Return the number of layers."""
    return int(model.config.get_text_config().num_hidden_layers)


def cached(model: PreTrainedModel, layers: str = "eager", record: Any = None) -> CachedModel:
    """Return a model with room for the prompts."""
    run = harness.open_run(model, len(PROMPTS), 60)
    how = ForwardOptions(layers=layers)
    made = ModelGraphs(run.runner, how, record) if record else None
    return CachedModel(run.runner, run.target.store, run.target.layout, run.watch, how, made)


def batch_of_prompts() -> Batch:
    """Return the prompts as a batch that reads them."""
    pool = harness.open_pool(harness.requests(PROMPTS, 30))
    return pool.batch(pool.admit(len(PROMPTS)))


@torch.inference_mode()
def assert_theirs(model: PreTrainedModel, hidden: Mapping[int, torch.Tensor], ids: list[list[int]], width: int) -> None:
    """Assert that these are transformers' hidden states of the last ``width`` tokens of each row."""
    for row, tokens in enumerate(ids):
        theirs = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        count = min(width, len(tokens))
        for number, states_BTD in hidden.items():
            assert states_BTD.shape[1] == width
            torch.testing.assert_close(states_BTD[row, -count:], theirs[number][0, -count:], atol=2e-4, rtol=2e-4)


@pytest.mark.wide
@pytest.mark.parametrize("name", zoo.NAMES)
def test_states_are_those_of_transformers(name: str) -> None:
    """Every hidden state, embedding and final norm included, of a prompt and of a chain fed after it."""
    model = zoo.build(name)
    numbers, target, batch = range(layers_of(model) + 1), cached(model), batch_of_prompts()
    target.capture(numbers)
    read = target.read(batch)
    assert list(read.hidden) == [*numbers]
    assert_theirs(model, read.hidden, PROMPTS, max(map(len, PROMPTS)))
    drafts = harness.random_prompts([3] * len(PROMPTS), zoo.VOCABULARY, seed=5)
    fed = target.feed(batch, Block(torch.tensor(drafts), 0), keep=1)
    assert fed.logits_BTV.shape[1] == 1
    assert_theirs(model, fed.hidden, [p + d for p, d in zip(PROMPTS, drafts, strict=True)], 3)


@pytest.mark.wide
def test_states_of_prompts_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of all chunks of a prompt come in one piece."""
    monkeypatch.setattr(choice, "PREFILL_TOKENS", 8)
    model = zoo.build("qwen3")
    target, batch = cached(model), batch_of_prompts()
    target.capture([1])
    target.capture([2])
    read = target.read(batch)
    assert list(read.hidden) == [1, 2]
    assert_theirs(model, read.hidden, PROMPTS, max(map(len, PROMPTS)))


@pytest.mark.wide(but=["past0-0"])
@pytest.mark.parametrize(("past", "cached"), [([True, False], 0), ([False, True], 0), ([False], 12)])
def test_cached_tokens_are_fed_where_anyone_needs_their_states(past: list[bool], cached: int) -> None:
    """Who asks for the states of all tokens gets them, whatever others ask for before and afterwards."""
    run = harness.open_run(zoo.build("llama"), 2, 20, kv="paged,block=4,share=on")
    for number, wanted in enumerate(past):
        run.target.capture([number], wanted)
    pool = harness.open_pool(harness.requests([[*range(3, 17)]] * 2, 4))
    first, again = pool.admit(2)
    assert run.target.reserve(first, 14) == 0
    run.target.read(pool.batch([first]))
    assert run.target.reserve(again, 14) == cached


@pytest.mark.wide(but=["unknown"])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: zoo.build("qwen3"),
            r"the target \(Qwen3ForCausalLM\) has hidden states 0 \(its embedding\) to 2, and 3 before its final norm, got -1, 4",
        ),
        (fakes.fake_target, r"the target \(FakeModel\) does not say which of its modules are its layers: expected"),
    ],
    ids=["beyond", "unknown"],
)
def test_states_that_cannot_be_taken_are_refused(model: Any, message: str) -> None:
    """One sentence says which hidden states there are, or why there are none."""
    with pytest.raises(ModelError, match=message):
        cached(model()).capture([1, 4, -1])
