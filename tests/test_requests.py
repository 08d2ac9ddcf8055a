"""Prompts given to a pipeline: one alone is taken, what can be none is refused, and what cannot be decoded fails alone."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from specframe_testing import fakes

from specframe.errors import OptionError
from specframe.pipeline import Pipeline
from specframe.text.sampling import Sampling

TOKENIZER = fakes.fake_tokenizer()


def pipeline() -> Pipeline:
    """Return a pipeline on fake models."""
    target = fakes.fake_target()
    return Pipeline(target, fakes.fake_draft(target), draft_length=2, tokenizer=TOKENIZER)


METHODS = ["generate", "as_completed", "stream"]
CHAT = [{"role": "user", "content": "001;"}, {"role": "assistant", "content": "002;"}]


def ends(pipe: Pipeline, method: str, prompts: Any, new: int = 4) -> list[Any]:
    """Return the results that a method gives."""
    found = list(getattr(pipe, method)(prompts, new))
    return [one.result for one in found if one.result] if method == "stream" else found


@pytest.mark.wide(but=["[{'role': 'user', 'content': '001;'}, {'role': 'assistant', 'content': '002;'}]-stream"])
@pytest.mark.parametrize("method", [*METHODS, "chat"])
@pytest.mark.parametrize(
    "prompt", ["001;", (7, 8), np.array([7, 8]), torch.tensor([7, 8]), CHAT, tuple(CHAT)], ids=repr
)
def test_one_prompt_alone_is_one_prompt(prompt: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text, token ids or the messages of a chat that are no list of prompts have the tokens of a list of that one."""
    monkeypatch.setattr("specframe.text.chat.render", lambda messages, tokenizer: [len(messages), 9])
    monkeypatch.setattr("specframe.engine.encoding.render", lambda messages, tokenizer: [len(messages), 9])
    monkeypatch.setattr(TOKENIZER, "chat_template", "any", raising=False)
    alone, listed = (ends(pipeline(), method, given) for given in (prompt, [prompt]))
    assert [one.token_ids for one in alone] == [one.token_ids for one in listed]
    assert len(alone[0].token_ids) == 4


NO_LISTS = [b"001;", bytearray(b"001;"), {"001;": 1}, {"001;"}, 5, 1.5, None, True]
NO_PROMPTS = {
    "a bare id": (5, "got 5"),
    "nothing": (None, "got None"),
    "bytes": (b"001;", "got b'001;'"),
    "an array of bytes": (bytearray(b"001;"), "got bytearray(b'001;') (bytearray)"),
    "a mapping": ({"prompt": "001;"}, "got {'prompt': '001;'}"),
    "a message beside a text": (CHAT[0], "got {'role': 'user', 'content': '001;'}"),
    "a set": ({1}, "got {1}"),
    "a fraction": ([3, 1.5], "the prompt holds 1.5: expected token ids"),
    "a boolean": ([True], "the prompt holds True: expected token ids"),
    "an array of fractions": (np.array([1.0]), "the prompt holds 1.0: expected token ids"),
    "a tensor of booleans": (torch.tensor([True]), "the prompt holds True: expected token ids"),
    "rows": (torch.ones(2, 2, dtype=torch.long), "the prompt holds [1, 1]: expected token ids"),
    "texts": (["001;"], "the prompt holds '001;': expected token ids"),
}


@pytest.mark.wide
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("prompts", NO_LISTS, ids=repr)
def test_what_is_neither_a_prompt_nor_a_list_is_refused(prompts: Any, method: str) -> None:
    """Bytes, a mapping, a set, a number or nothing is refused on the call, in a sentence."""
    kinds = "each a text, a list of token ids or a list of messages"
    with pytest.raises(OptionError, match=re.escape(f"prompts: expected a prompt or a list of them, {kinds}, got ")):
        getattr(pipeline(), method)(prompts, 3)


@pytest.mark.wide(but=["texts"])
@pytest.mark.parametrize("name", NO_PROMPTS)
def test_what_can_be_no_prompt_is_refused_on_the_call(name: str) -> None:
    """Nothing is decoded where a list has an entry of another type, and the sentence has its number."""
    prompt, why = NO_PROMPTS[name]
    for prompts in (["001;", prompt], iter(["001;", prompt])):
        with pytest.raises(OptionError, match=r"prompts: number 1 cannot be a prompt: .*" + re.escape(why)):
            pipeline().generate(prompts, 4)


UNREADABLE = {
    "no tokens": ([], "the prompt is empty"),
    "half a pair": ("\ud83d 001;", "expected text, got half of a surrogate pair"),
    "an unknown id": ([61], "the prompt holds token id 61: expected ids from 0 to 60"),
}


@pytest.mark.wide(but=["stream"])
@pytest.mark.parametrize("method", METHODS)
def test_errors_are_told_once(method: str) -> None:
    """One warning says how many results are errors and why the first is; without errors there is none."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ends(pipeline(), method, ["001;", [], [61], [7, 8]])
        ends(pipeline(), method, ["001;"])
    (warning,) = told
    assert str(warning.message).startswith(
        "results with an error: 2; the first is that of prompt 1: the prompt is empty"
    )


@pytest.mark.wide
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_prompt_that_cannot_be_decoded_fails_alone(name: str) -> None:
    """Its result says why, and the others have the tokens they would have without it."""
    prompt, why = UNREADABLE[name]
    alone = [result.token_ids for result in pipeline().generate(["001;002;", [7, 8]], 4)]
    pipe = pipeline()
    first, failed, last = pipe.generate(["001;002;", prompt, [7, 8]], 4)
    assert [first.token_ids, last.token_ids] == alone
    assert failed.finish_reason == "error"
    assert why in str(failed.error)
    assert pipe.report.errors == 1


def test_a_tokenizer_that_raises_fails_the_prompt_alone() -> None:
    """Whatever a tokenizer raises on one text is that prompt's error."""

    class Choosy:
        def __call__(self, text: str) -> Any:
            if "9" in text:
                raise ZeroDivisionError("nine")
            return TOKENIZER(text)

        def decode(self, ids: Any, **options: Any) -> Any:
            return TOKENIZER.decode(ids, **options)

    pipe = Pipeline(fakes.fake_target(), None, tokenizer=Choosy())  # type: ignore[arg-type]
    first, failed = pipe.generate(["001;", "009;"], 4)
    assert first.finish_reason != "error"
    assert failed.error == "the target's tokenizer cannot read the prompt: nine"


@pytest.mark.wide
@pytest.mark.parametrize(
    "prompts",
    [([3, 4], [5]), iter([[3, 4], [5]]), [np.array([3, 4]), torch.tensor([5])], [[np.int64(3), torch.tensor(4)], (5,)]],
    ids=["tuple", "iterator", "arrays", "numbers of arrays"],
)
def test_prompts_may_be_anything_that_holds_token_ids(prompts: Any) -> None:
    """Tuples, iterators, arrays and tensors of whole numbers are taken as lists are."""
    expected = [result.token_ids for result in pipeline().generate([[3, 4], [5]], 4)]
    assert [result.token_ids for result in pipeline().generate(prompts, 4)] == expected


def test_every_sample_of_every_prompt_has_a_stream_of_its_own() -> None:
    """No two continuations of a run draw the same random numbers, whatever the numbers of prompts and samples."""
    made, _ = pipeline().requests.make([[7]] * 3, 2, sampling=Sampling(samples=3))
    assert len({request.stream for request in made}) == len(made) == 9
