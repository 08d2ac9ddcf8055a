"""Every argument of the Python interface names itself, what it accepts and what it was given when that is wrong."""

from __future__ import annotations

import inspect
import re
import types
from typing import Any

import numpy as np
import pytest
import torch
from specframe_testing import fakes, zoo

import specframe
from specframe.contracts.roles import Observer
from specframe.engine.request_factory import RequestOptions
from specframe.errors import SpecframeError
from specframe.pipeline import Pipeline
from specframe.text.sampling import SamplingParameters

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)


ROLES = {
    "drafter": "drafter",
    "align": "alignment",
    "schedule": "scheduler",
    "accept": "acceptance rule",
    "verify": "verifier",
    "kv": "KV backend",
    "draft_length": "draft-length policy",
    "attention": "attention backend",
    "executor": "executor",
    "constraint": "constraint",
}


class Unreadable:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


ARRAY = np.array([1, 2])
"""Compares with a text entry by entry."""

WRONG: dict[str, tuple[Any, ...]] = {
    "target": (None, 5, 1.5, [TARGET], {}, type(TARGET)),
    "drafter": (5, 1.5, [], {}, type(DRAFT), b"tiny"),
    "align": (None, 5, [], {}, "", ARRAY),
    "schedule": (5, [], {}, False, ""),
    "accept": (None, 5, [], 0.5, "", ARRAY),
    "verify": (None, 5, True, ""),
    "kv": (1, 0, [], False, ""),
    "batch_size": (0, -1, 1.5, "4", None, True, float("nan"), torch.ones(9, 9), Unreadable()),
    "draft_length": (None, True, 2.5, [1, 2], {}, "", 0, -3, "0", float("nan"), "²", "9" * 5000, 10**5000, ARRAY),
    "device": (5, None, Unreadable(), "gpu", "cuda:x"),
    "dtype": (5, None, Unreadable(), "float", "int8"),
    "seed": (None, 1.5, "a", -1, 2**64, 10**30, True),
    "tokenizer": (5, "tiny", object(), len),
    "observers": (5, torch.tensor(1), None, "x", [5], [Observer], [types.SimpleNamespace(round=len)], {}),
    "check": (1, None, "yes"),
    "attention": (None, 5, "sdpa", Unreadable()),
    "graphs": (None, True, "yes"),
    "rounds": (None, True, "late"),
    "layers": (None, 1, "fast"),
    "generation_config": (5, False, "", "off", {}),
    "executor": (None, 5, [], "", ARRAY),
    "bitwise": (1, None, "yes"),
    "load_options": (5, "", "none,x", "coarse", ARRAY, Unreadable(), {1: 2}, {"quantization": []}),
    "constraint": (5, "", [], {}, ARRAY, Unreadable(), len),
    "memory": (0, -5, True, "", "22 GBs", "0GB", "-1GB", "1e9", "much", 2.5e20, [], {}, ARRAY, Unreadable(), len),
}
ASKED: dict[str, tuple[Any, ...]] = {
    "max_new_tokens": (0, -1, 1.5, "4", None, True),
    "arrivals": (5, torch.tensor(1), np.array(1), "0 1", [0], [0, -1], [0, "x"], [0, float("inf")], [0, None], {}),
    "sort": (1, None, "yes"),
    "sampling": (5, torch.tensor(1), np.array(1), "x", {"temperature": 1}, [None, None], [{}, {}]),
}
SHOWN = {"draft_length": "draft.length"}


def cases(table: dict[str, tuple[Any, ...]]) -> list[Any]:
    """Return an (argument, value) pair for each value in a table."""
    return [
        pytest.param(name, value, id=f"{name}-{place}") for name in table for place, value in enumerate(table[name])
    ]


def one_sentence(error: pytest.ExceptionInfo[SpecframeError], name: str) -> None:
    """Assert that an error is one sentence with the argument's name, what was expected and what was got."""
    text = str(error.value)
    assert re.search(rf"\b{SHOWN.get(name, name)}\b|\b{ROLES.get(name, name)}\b", text), text
    assert re.search(r"expected", text), text
    assert "\n" not in text


@pytest.mark.wide
def test_every_argument_is_in_a_table() -> None:
    """No argument of the pipeline or of what it is asked for is left out here."""
    assert set(WRONG) == set(inspect.signature(Pipeline).parameters)
    assert set(inspect.signature(Pipeline.generate).parameters) == {"self", "prompts", "max_new_tokens", "asked"}
    assert set(ASKED) == {
        "max_new_tokens",
        *set(RequestOptions.__annotations__) - set(SamplingParameters.__annotations__),
    }


@pytest.mark.wide
@pytest.mark.parametrize(("name", "value"), cases(WRONG))
def test_an_argument_of_the_pipeline(name: str, value: Any) -> None:
    """A value of another type, or outside of the range, is refused when the pipeline is made."""
    with pytest.raises(SpecframeError) as error:
        Pipeline(**{"target": TARGET, "drafter": DRAFT, name: value})
    one_sentence(error, name)


def test_no_target_is_not_the_embedded_one() -> None:
    """None, such as a look-up that found nothing, is refused as a target; left out, it is the embedded one."""
    with pytest.raises(SpecframeError, match=r"target: expected an alias, a directory, .*, got None"):
        Pipeline(target=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["generate", "as_completed", "stream"])
@pytest.mark.parametrize(("name", "value"), cases(ASKED))
def test_an_argument_of_a_run(name: str, value: Any, method: str) -> None:
    """It is refused on the call, before anything is decoded."""
    pipe = Pipeline(TARGET, DRAFT)
    with pytest.raises(SpecframeError) as error:
        getattr(pipe, method)([[1], [2]], **{name: value})
    one_sentence(error, name)


@pytest.mark.wide
@pytest.mark.parametrize("given", [{}, {"draft_length": 1.5}, {"align": 5}, {"accept": None}, {"kv": 1}], ids=str)
def test_an_argument_of_assisted(given: dict[str, Any]) -> None:
    """Inside ``generate`` a wrong argument of ``assisted`` is one sentence, too."""
    ids, model = torch.tensor([[1, 2]]), zoo.build("llama")
    with pytest.raises(SpecframeError) as error:
        model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=2,
            custom_generate=specframe.assisted(**{"draft": model if given else 5, **given}),
        )
    one_sentence(error, next(iter(given), "drafter"))
