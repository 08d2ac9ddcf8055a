"""Prompts given to a pipeline: what is none fails alone, or is refused where it stands for all of them."""

from __future__ import annotations

import re
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


NO_LISTS = ["001;", b"001;", {"001;": 1}, {"001;"}, 5, 1.5, None, True, [3, 4], np.array([3, 4]), torch.tensor([3, 4])]


@pytest.mark.parametrize("method", ["generate", "as_completed", "stream"])
@pytest.mark.parametrize("prompts", NO_LISTS, ids=repr)
def test_prompts_that_are_no_list_are_refused(prompts: Any, method: str) -> None:
    """One text, one list of token ids, bytes, a mapping, a set or a number is refused on the call, in a sentence."""
    expected = "prompts: expected a list of prompts, each a text, a list of token ids or a list of messages, got "
    with pytest.raises(OptionError, match=re.escape(expected)):
        getattr(pipeline(), method)(prompts, 3)


NO_PROMPTS = {
    "a bare id": (5, "expected a text, a list of token ids or a list of messages, got 5"),
    "nothing": (None, "expected a text, a list of token ids or a list of messages, got None"),
    "bytes": (b"001;", "expected a text, a list of token ids or a list of messages, got b'001;'"),
    "a mapping": ({1: 2}, "expected a text, a list of token ids or a list of messages, got {1: 2}"),
    "a set": ({1}, "expected a text, a list of token ids or a list of messages, got {1}"),
    "a fraction": ([3, 1.5], "the prompt holds 1.5: expected token ids"),
    "a boolean": ([True], "the prompt holds True: expected token ids"),
    "an array of fractions": (np.array([1.0]), "the prompt holds 1.0: expected token ids"),
    "a tensor of booleans": (torch.tensor([True]), "the prompt holds True: expected token ids"),
    "rows": (torch.ones(2, 2, dtype=torch.long), "the prompt holds [1, 1]: expected token ids"),
    "texts": (["001;"], "the prompt holds '001;': expected token ids"),
    "no tokens": ([], "the prompt is empty"),
    "half a pair": ("\ud83d 001;", "expected text, got half of a surrogate pair"),
    "an unknown id": ([61], "the prompt holds token id 61: expected ids from 0 to 60"),
}


@pytest.mark.parametrize("name", NO_PROMPTS)
def test_a_prompt_that_cannot_be_decoded_fails_alone(name: str) -> None:
    """Its result says why, and those beside it have the tokens they would have without it."""
    prompt, why = NO_PROMPTS[name]
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
