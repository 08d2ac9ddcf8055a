"""Values of options: those of strategies, over all that are registered, and those of the commands."""

from __future__ import annotations

import inspect
import math

import pytest

from specframe import Pipeline
from specframe.errors import OptionError, SpecframeError
from specframe.plugins import ROLES, parse_specification, registry
from specframe.values import bound, check_annotated, number, whole

INF = math.inf
RANGES: dict[tuple[str, str, str], tuple[float, float] | tuple[str, ...]] = {
    ("drafter", "prompt-lookup", "ngram"): (1, 64),
    ("acceptance rule", "typical", "epsilon"): (5e-324, 1),
    ("acceptance rule", "typical", "delta"): (5e-324, 1e300),
    ("acceptance rule", "synthetic", "rate"): (0, 1),
    ("acceptance rule", "synthetic", "profile"): (0, 1),
    ("acceptance rule", "synthetic", "length"): (0, 1e300),
    ("alignment", "masking", "positions"): ("published", "content"),
    ("alignment", "padding", "mask"): ("published", "content"),
    ("alignment", "padding", "positions"): ("published", "content"),
    ("alignment", "padding", "bonus"): ("published", "target"),
    ("scheduler", "continuous", "piece"): (1, 10**9),
    ("scheduler", "same-length", "window"): (1, 10**9),
    ("scheduler", "same-length", "patience"): (1, 10**9),
    ("draft-length policy", "fixed", "length"): (1, 10**9),
    ("draft-length policy", "goodput", "maximum"): (1, 256),
}
"""Every option of every strategy of specframe's own: the least and the greatest value it takes, or all it takes."""

NEVER = ("abc", "", "nan", "inf", "-inf", "true", "-1", "[1]", "0x10")
"""Values that no option with a range takes."""


def whole_numbers(option: tuple[str, str, str]) -> bool:
    """Return whether an option takes whole numbers alone."""
    kind, name, key = option
    return inspect.signature(registry().entry(kind, name).factory).parameters[key].annotation in (int, "int")


def wrong_values(option: tuple[str, str, str]) -> list[str]:
    """Return values outside of what an option takes, as they are typed."""
    known = RANGES[option]
    if isinstance(known[0], str):
        return ["abc", "", "nan", "1", "true", "0.5", "Published"]
    least, most = known
    if not whole_numbers(option):
        return [*NEVER, *(["0"] if least > 0 else []), *([f"{most + 0.5}"] if most < 1e300 else ["1e999"])]
    return [*NEVER, "0", "2.5", "1e9", "1e999", *([str(int(most) + 1), str(10**30)] if most < 10**9 else [])]


def test_every_option_of_a_strategy_is_in_the_table() -> None:
    """An option that is added has to say here which values it takes."""
    found = {
        (entry.kind, entry.name, key)
        for entry in registry()
        if entry.kind in ROLES and entry.distribution == "specframe-std"
        for key in inspect.signature(entry.factory).parameters
    }
    assert found == RANGES.keys()


@pytest.mark.parametrize("option", RANGES, ids=" ".join)
def test_a_wrong_value_of_a_strategys_option_is_one_sentence(option: tuple[str, str, str]) -> None:
    """It names the strategy, the option, what was expected and what was got."""
    kind, name, key = option
    for value in wrong_values(option):
        with pytest.raises(OptionError) as caught:
            registry().make(kind, f"{name},{key}={value}")
        message = str(caught.value)
        assert message.startswith(f"{kind} {name!r}: {key}: expected "), (value, message)
        assert "\n" not in message
        assert ", got " in message


@pytest.mark.parametrize("option", RANGES, ids=" ".join)
def test_the_ends_of_a_range_are_taken(option: tuple[str, str, str]) -> None:
    """The table holds the ranges that the strategies have, not narrower ones."""
    kind, name, key = option
    ends = RANGES[option]
    for end in [ends[0], ends[-1]] if isinstance(ends[0], str) else ends:
        assert registry().make(kind, f"{name},{key}={end}") is not None


@pytest.mark.parametrize("option", RANGES, ids=" ".join)
def test_an_option_given_twice_is_refused(option: tuple[str, str, str]) -> None:
    """Neither the first value nor the last is taken silently, with a dash or an underscore in the name."""
    kind, name, key = option
    with pytest.raises(OptionError, match=f"option {key!r} of {name!r} is given twice"):
        registry().make(kind, f"{name},{key}=1,{key}=1")
    with pytest.raises(OptionError, match="option 'a_b' of 'x' is given twice"):
        parse_specification("x,a-b=1,a_b=2")


@pytest.mark.parametrize(
    ("role", "value"),
    [
        ("schedule", "same-length,window=1000000000,patience=1000000000"),
        ("schedule", "continuous,piece=1000000000"),
        ("drafter", "prompt-lookup,ngram=64"),
        ("draft_length", "goodput,maximum=256"),
    ],
)
def test_the_greatest_values_decode(role: str, value: str) -> None:
    """What is accepted can be run: memory follows the prompts, not the value."""
    pipe = Pipeline(**{"target": "tiny", "drafter": "none", role: value})
    (result,) = pipe.generate(["import os"], 3)
    plain = Pipeline(target="tiny", drafter="none").generate(["import os"], 3)
    assert result.token_ids == next(plain).token_ids


class Stranger:
    """A strategy that checks nothing itself, as one of a plugin may."""

    def __init__(self, span: int = 4, share: float | None = 0.5, mode: str = "a", thing: object = None) -> None:
        self.given = span, share, mode, thing


def test_annotations_are_checked_for_whoever_checks_nothing() -> None:
    """A value of another type than the annotation's is refused; what is annotated otherwise is passed on."""
    check_annotated(Stranger, {"span": 3, "share": 1, "mode": "b", "thing": 2.5})
    check_annotated(Stranger, {"share": None})
    for given, expected in [
        ({"span": 2.5}, "span: expected a whole number, got 2.5"),
        ({"span": True}, "span: expected a whole number, got True"),
        ({"share": "x"}, "share: expected a number, got 'x'"),
        ({"share": float("nan")}, "share: expected a number, got nan"),
        ({"mode": 3}, "mode: expected a text, got 3"),
    ]:
        with pytest.raises(OptionError) as caught:
            check_annotated(Stranger, given)
        assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("least", "most", "above", "words"),
    [
        (-INF, INF, False, ""),
        (0, INF, False, " of at least 0"),
        (0, INF, True, " above 0"),
        (0, 1, True, " above 0 and at most 1"),
        (1, 2048, False, " from 1 to 2,048"),
        (0, 2**64 - 1, False, " from 0 to 18,446,744,073,709,551,615"),
    ],
)
def test_a_range_in_words(least: float, most: float, above: bool, words: str) -> None:
    """An open end is not named."""
    assert bound(least, most, above) == words


@pytest.mark.parametrize("value", [None, "5", True, float("nan"), INF, -INF, 10**400, [1], 0, 3])
def test_a_check_refuses_and_names(value: object) -> None:
    """What lies outside of the range, and what is no finite number, is an error that is a ValueError, too."""
    with pytest.raises(ValueError, match=r"^size: expected a number from 1 to 2, got "):
        number("size", value, 1, 2)
    with pytest.raises(SpecframeError, match=r"^size: expected a whole number from 1 to 2, got "):
        whole("size", value, 1, 2)
