"""Arguments of the Python interface drawn at random: a sentence that names the argument, or the target's own ids."""

from __future__ import annotations

import decimal
import fractions
import math
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzzing
import numpy as np
import pytest
import torch
from specframe_testing import fakes

import specframe
from specframe import Pipeline, Sampling, SpecframeError
from specframe.reference import reference_decode

TARGET = fakes.fake_target(context=64)
DRAFT = fakes.fake_draft(TARGET)
TOKENIZER = fakes.fake_tokenizer()
NEW = 5


class Unreadable:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        """Fail."""
        raise RuntimeError("no repr")


class Number(int):
    """A number of a class of its own."""


ANYTHING: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 3, 60, 10**30, -(10**30), 2**63, 2**64, 10**5000, Number(2)),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -0.5, 5e-324, 1e308, math.nan, math.inf, -math.inf, 1j, decimal.Decimal("0.5")),
    *(decimal.Decimal("nan"), fractions.Fraction(1, 2), np.int64(2), np.float32(0.5), np.float64("nan"), np.array([1, 2])),
    *(np.array(1), torch.tensor(1), torch.tensor([1, 2]), torch.tensor(0.5), torch.float32, torch.device("cpu")),
    *fuzzing.TEXTS,
    *(b"", b"x", bytearray(b"x"), [], [[]], [1], [-1], [1, 2], [0.5], [None], ["x"], [""], [math.nan], ["001;", [2]], (), (1, 2)),
    *({}, {"temperature": 1}, {1, 2}, frozenset(), range(3), Path("x"), object(), Unreadable(), [Unreadable()], len, str, Sampling),
    *(Sampling(), Sampling(samples=2), [Sampling()], [Sampling(), Sampling()], [Sampling(), None], TARGET, DRAFT, TOKENIZER, print),
)  # fmt: skip
"""Values of all types, for any argument."""

Takes = Callable[[Any], bool | None]


def whole(least: int, most: float = math.inf) -> Takes:
    """Return whether a value is a whole number in a range; true and false are none."""
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and least <= v <= most


def number(least: float = -math.inf, most: float = math.inf, above: bool = False) -> Takes:
    """Return whether a value is a finite number in a range; what numpy has for one is left open."""

    def takes(value: Any) -> bool | None:
        if isinstance(value, np.generic):
            return None
        finite = isinstance(value, int | float) and value == value and abs(value) <= 1.7976931348623157e308
        if not finite or isinstance(value, bool):
            return False
        return least <= value <= most and not (above and value == least)

    return takes


def or_none(takes: Takes) -> Takes:
    """Return whether a value is None, or as asked."""
    return lambda value: True if value is None else takes(value)


def word(*known: str) -> Takes:
    """Return whether a value is one of some words; None and enumerations of torch are left to the one who asks."""
    return lambda value: isinstance(value, str) and value in known


def strategy(*names: str) -> Takes:
    """Return whether a value names a strategy, where it has no options."""
    return lambda value: isinstance(value, str) and (value in names or (None if "," in value else False))


def kind(*types: type) -> Takes:
    """Return whether a value is of a type: whether it can be used only shows then."""
    return lambda value: None if isinstance(value, types) else False


def sequence(value: Any) -> bool | None:
    """Return whether a value is a list of anything."""
    return None if isinstance(value, list | tuple | range | np.ndarray | torch.Tensor | set | frozenset) else False


PIPELINE: dict[str, Takes] = {
    "target": kind(str, Path, torch.nn.Module),
    "drafter": lambda v: None if v is None or isinstance(v, str | Path | torch.nn.Module) else False,
    "align": strategy("ragged", "eqspec", "exspec"), "schedule": or_none(strategy("continuous", "fixed")),
    "accept": strategy("auto", "greedy", "block", "gumbel"), "verify": strategy("chain"),
    "kv": or_none(strategy("slab", "dynamic")), "batch_size": whole(1),
    "draft_length": lambda v: None if isinstance(v, str) else whole(1, 63)(v),
    "device": lambda v: None if isinstance(v, torch.device) else word("auto", "cpu")(v),
    "dtype": lambda v: None if isinstance(v, torch.dtype) else word("auto", "float32")(v), "seed": whole(0, 2**64 - 1),
    "tokenizer": lambda v: None if v is None or v is TOKENIZER else False,
    "observers": lambda v: isinstance(v, list | tuple | set | frozenset | range) and len(v) == 0,
    "check": lambda v: isinstance(v, bool), "attention": word("auto", "masked", "packed", "flex"),
    "graphs": word("auto", "on", "off"), "layers": word("auto", "eager", "traced", "compiled"),
    "generation_config": or_none(word("auto", "none")), "executor": strategy("local"),
    "bitwise": lambda v: isinstance(v, bool),
    "load_options": or_none(lambda v: v == "none" if isinstance(v, str) else isinstance(v, dict) and not v),
    "constraint": or_none(lambda v: False),
    "memory": or_none(lambda v: isinstance(v, int) and not isinstance(v, bool) and 0 < v < 10**15),
}  # fmt: skip
"""Which values the arguments of a pipeline take (the docstring of Pipeline)."""

ASKED: dict[str, Takes] = {
    "prompts": lambda value: True if isinstance(value, str) else sequence(value),
    "max_new_tokens": whole(1),
    "arrivals": or_none(sequence),
    "sort": lambda v: isinstance(v, bool),
    "sampling": lambda v: None if v is None or isinstance(v, Sampling) else sequence(v),
}
"""Which values a run takes."""

SAMPLING: dict[str, Takes] = {
    "temperature": or_none(number(0)), "top_k": or_none(whole(0)), "top_p": or_none(number(0, 1, above=True)),
    "min_p": or_none(number(0, 1)), "typical_p": or_none(number(0, 1, above=True)),
    "repetition_penalty": or_none(number(0, above=True)), "presence_penalty": or_none(number()),
    "min_new_tokens": or_none(whole(0)), "bad_words_ids": or_none(kind(list, tuple)),
    "suppress_tokens": or_none(kind(list, tuple)), "forced_eos": or_none(lambda v: isinstance(v, bool)),
    "frequency_penalty": or_none(number()), "sequence_bias": or_none(kind(list, tuple)),
    "processors": kind(list, tuple),
    "stop": or_none(lambda v: v != "" if isinstance(v, str) else None if isinstance(v, list | tuple) else False),
    "criteria": kind(list, tuple), "max_new_tokens": or_none(whole(1)), "max_time": or_none(number(0, above=True)),
    "logprobs": or_none(whole(0)), "samples": whole(1, 10_000),
}  # fmt: skip
"""Which values the parameters of a request take (docs/generation.md)."""

ASSISTED: dict[str, Takes] = {
    "draft": PIPELINE["drafter"],
    "draft_length": PIPELINE["draft_length"],
    "align": PIPELINE["align"],
    "accept": PIPELINE["accept"],
    "kv": PIPELINE["kv"],
}
"""Which values ``assisted`` takes."""

RANGES = {**SAMPLING, **ASSISTED, **ASKED, **PIPELINE, "max_new_tokens": or_none(whole(1))}
"""All of them, by name."""

CALLED = {
    "align": "alignment", "schedule": "scheduler", "accept": "acceptance rule", "verify": "verifier", "kv": "KV backend",
    "drafter": "draft", "prompts": "prompt", "draft": "drafter",
}  # fmt: skip
"""What else a sentence may call an argument."""

SLOW = {"layers": ("compiled",), "attention": ("flex",)}
"""Values that compile, which takes half a minute."""


def value_of(draw: random.Random, table: dict[str, Takes], name: str) -> Any:
    """Return a value for an argument: one that it takes, or anything."""
    fine = [one for one in ANYTHING if table[name](one) is True]
    value = draw.choice(fine) if fine and draw.random() < 0.3 else draw.choice(ANYTHING)
    return "auto" if isinstance(value, str) and value in SLOW.get(name, ()) and name != "layers" else value


def some_of(draw: random.Random, table: dict[str, Takes], most: int) -> dict[str, Any]:
    """Return values for some arguments."""
    return {name: value_of(draw, table, name) for name in fuzzing.some(draw, [*table], most)}


def truth(ids: list[int], new: int = NEW) -> list[int]:
    """Return the target's own continuation."""
    return reference_decode(TARGET, ids, new, {0})


def require_named(error: SpecframeError, given: dict[str, Any], wrong: list[str]) -> None:
    """Assert that an error is a sentence that names an argument: one that lies outside of its range, where there is one."""
    open_ones = [name for name, value in given.items() if wrong and RANGES[name](value) is None]
    names = [*wrong, *open_ones] or [*given]
    names = [one for name in names for one in (name, CALLED.get(name, name))]
    others = [] if wrong else ["prompts", "arrivals", "model", "temperature"]
    fuzzing.require_sentence(str(error), [*names, *others], safe(given))


def safe(given: dict[str, Any]) -> str:
    """Return arguments as text, those that cannot be shown, too."""
    return ", ".join(f"{name}={type(one).__name__}" for name, one in given.items())


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no hub."""
    monkeypatch.setattr("specframe.models.hub.fault", lambda *_: OSError("no network"))


def outside(table: dict[str, Takes], given: dict[str, Any]) -> list[str]:
    """Return the arguments whose value lies outside of its range."""
    return [name for name, value in given.items() if table[name](value) is False]


def an_argument_of_the_pipeline(draw: random.Random) -> None:
    """A pipeline made of anything decodes as the reference does, or is refused."""
    given = some_of(draw, PIPELINE, 3)
    wrong = outside(PIPELINE, given)
    try:
        pipe = Pipeline(**{"target": TARGET, "drafter": DRAFT, **given})
        results = list(pipe.generate([[1, 2], [3]], NEW))
    except SpecframeError as error:
        require_named(error, given, wrong)
        return
    assert not wrong, (safe(given), wrong, "accepted")
    if pipe.target_model is TARGET:
        assert [one.token_ids for one in results] == [truth([1, 2]), truth([3])], safe(given)


def an_argument_of_a_run(draw: random.Random) -> None:
    """A run asked for anything gives every prompt its results, or is refused."""
    given = some_of(draw, ASKED, 2)
    wrong = outside(ASKED, given)
    method = draw.choice(("generate", "as_completed", "stream"))
    pipe = Pipeline(TARGET, DRAFT, tokenizer=TOKENIZER, draft_length=2)
    asked = {"prompts": [[1, 2], [3]], "max_new_tokens": NEW, **given}
    try:
        found = list(getattr(pipe, method)(**asked))
    except SpecframeError as error:
        require_named(error, {"prompts": None, **given}, wrong)
        return
    assert not wrong, (safe(given), wrong, "accepted")
    results = [one.result for one in found if one.result] if method == "stream" else found
    if "prompts" not in given:
        new = min(asked["max_new_tokens"], 60)
        ids = {(one.index, one.sample): one.token_ids for one in results}
        assert {key[0] for key in ids} == {0, 1}, safe(given)
        assert len(ids) == len(results), safe(given)
        for (index, _), tokens in ids.items():
            expected = truth([[1, 2], [3]][index], new)
            assert tokens[: len(expected)] == expected, safe(given)
    for one in results:
        assert (one.error is None) == (one.finish_reason != "error"), safe(given)


def a_parameter_of_a_request(draw: random.Random) -> None:
    """Sampling parameters of anything are refused when they are made or handed in, or decode; greedy ones as the reference."""
    given = some_of(draw, SAMPLING, 3)
    wrong = outside(SAMPLING, given)
    try:
        sampling = Sampling(**given)
        pipe = Pipeline(TARGET, DRAFT, tokenizer=TOKENIZER, draft_length=2)
        results = list(pipe.generate([[1, 2], [3]], NEW, sampling=sampling))
    except SpecframeError as error:
        require_named(error, given, wrong)
        return
    assert not wrong, (safe(given), wrong, "accepted")
    assert [(one.index, one.sample) for one in results] == [(i, s) for i in (0, 1) for s in range(sampling.samples)]
    if set(given) <= {"logprobs", "samples", "top_k", "max_new_tokens"} and not sampling.temperature:
        new = min(sampling.max_new_tokens or NEW, 60)
        for one in results:
            expected = truth([[1, 2], [3]][one.index], new)
            assert one.token_ids[: len(expected)] == expected, safe(given)


def an_argument_of_assisted(draw: random.Random) -> None:
    """Inside of ``generate`` anything is refused, or gives the tokens of ``generate`` without an assistant."""
    given = some_of(draw, ASSISTED, 2)
    wrong = outside(ASSISTED, given)
    ids = torch.tensor([[1, 2], [0, 3]])
    mask = torch.tensor([[1, 1], [0, 1]])
    batch: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": NEW, "do_sample": False}
    try:
        assistant = specframe.assisted(**{"draft": DRAFT, **given})
        found = TARGET.generate(ids, **batch, custom_generate=assistant)  # type: ignore[operator]
    except SpecframeError as error:
        require_named(error, given, wrong)
        return
    assert not wrong, (safe(given), wrong, "accepted")
    for row, prompt in enumerate(([1, 2], [3])):
        expected = truth(prompt)
        assert found[row, 2 : 2 + len(expected)].tolist() == expected, safe(given)


KINDS = (an_argument_of_the_pipeline, an_argument_of_a_run, a_parameter_of_a_request, an_argument_of_assisted)


@pytest.mark.wide(but=["2"])
@fuzzing.inputs("argument")
def test_an_argument(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with anything for its arguments ends with a sentence that names one, or with the target's own ids."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        KINDS[number % len(KINDS)](fuzzing.drawn("argument", number))
