"""Values of options: those of strategies, over all that are registered, and those of the commands."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import re
import subprocess
import sys

import click
import pytest
from command_line import refusal, walk
from specframe_lab.commands.lab_option_types import Arrivals, ListOf

from specframe.cli import option_types
from specframe.errors import OptionError, SpecframeError
from specframe.plugins.entries import ROLES
from specframe.plugins.registry import parse_specification, registry
from specframe.value_checks import flag, number, whole

INF = math.inf
RANGES: dict[tuple[str, str, str], tuple[float, float] | tuple[str, ...]] = {
    ("drafter", "prompt-lookup", "ngram"): (1, 64), ("drafter", "first", "match"): (1, 10**9),
    ("drafter", "first", "weigh"): ("on", "off"), ("drafter", "suffix", "factor"): (0, 256),
    ("drafter", "suffix", "offset"): (0, 256), ("drafter", "suffix", "least"): (0, 1),
    ("drafter", "suffix", "depth"): (2, 256), ("drafter", "suffix", "requests"): (0, 10_000_000),
    ("drafter", "suffix", "engine"): ("own",), ("acceptance rule", "rejection", "siblings"): ("distinct", "independent"),
    ("acceptance rule", "traversal", "siblings"): ("distinct", "independent"),
    ("acceptance rule", "typical", "epsilon"): (5e-324, 1), ("acceptance rule", "typical", "delta"): (5e-324, 1e300),
    ("acceptance rule", "synthetic", "rate"): (0, 1), ("acceptance rule", "synthetic", "profile"): (0, 1),
    ("acceptance rule", "synthetic", "length"): (0, 1e300), ("alignment", "masking", "positions"): ("published", "content"),
    ("alignment", "padding", "mask"): ("published", "content"),
    ("alignment", "padding", "positions"): ("published", "content"),
    ("alignment", "padding", "bonus"): ("published", "target"), ("scheduler", "continuous", "piece"): (1, 10**9),
    ("scheduler", "continuous", "mixed"): ("auto", "on", "off"), ("scheduler", "continuous", "wait"): (0, 1e300),
    ("scheduler", "same-length", "window"): (1, 10**9), ("scheduler", "same-length", "patience"): (1, 10**9),
    ("drafter", "window", "sink"): (0, 10**9), ("drafter", "window", "recent"): (1, 10**9),
    ("KV backend", "paged", "block"): (1, 10**9), ("KV backend", "paged", "blocks"): (1, 10**9),
    ("KV backend", "paged", "share"): ("on", "off"), ("KV backend", "paged", "states"): (0, 10**9),
    ("KV backend", "paged", "stride"): (1, 10**9), ("KV backend", "paged", "view"): ("rows", "blocks"),
    **dict.fromkeys(
        [
            ("KV backend", name, key)
            for name in ("dynamic", "paged", "pool", "slab")
            for key in ("dtype", "draft_dtype")
        ],
        ("model", "int8", "fp8"),
    ),
    ("draft-length policy", "fixed", "length"): (1, 10**9), ("draft-length policy", "explicit", "maximum"): (1, 64),
    ("draft-length policy", "explicit", "least"): (5e-324, 1), ("draft-length policy", "implicit", "maximum"): (1, 64),
    ("draft-length policy", "implicit", "least"): (5e-324, 1), ("draft-length policy", "goodput", "maximum"): (1, 64),
    ("draft-length policy", "goodput", "confidence"): ("on", "off"),
}  # fmt: skip
"""Every option of every strategy of specframe's own: the least and the greatest value it takes, or all it takes."""

TREE_DRAFTERS = itertools.product(("model", "early-exit", "layer-skip", "window"), ("tree", "branch", "nodes", "top"))
OF_TREES = {("drafter", name, key) for name, key in TREE_DRAFTERS} | {("draft-length policy", "fixed", "nodes")}
"""Options that go together: plugins/specframe-std/tests/test_tree_drafts.py has their values."""
OF_TREES |= {("drafter", name, key) for name in ("prompt-lookup", "suffix") for key in ("tree", "nodes")}
"""Of these test_prompt_lookup.py and test_suffix.py of specframe-std."""
OF_TARGETS = {("drafter", "early-exit", "layers"), ("drafter", "layer-skip", "skip")}
OF_TARGETS |= {("drafter", "suffix", "memory"), ("drafter", "first", "of"), ("KV backend", "paged", "memory")}
OF_TARGETS |= {("KV backend", "paged", "host")}
"""Options whose values depend on what there is: test_self_drafting.py, test_suffix.py, test_first.py,
test_shared_memory.py and test_host_memory.py of specframe-std have them."""

NEVER = ("abc", "", "nan", "inf", "-inf", "true", "-1", "[1]", "0x10", "1_0", "0.1_0", "١", "²")
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
    beyond = [str(int(most) + 1), str(10**30)] if most < 10**9 else []
    return [*NEVER, *(["0"] if least > 0 else []), "2.5", "1e9", "1e999", *beyond]


@pytest.mark.wide
def test_every_option_of_a_strategy_is_in_the_table() -> None:
    """An option that is added has to say here which values it takes."""
    found = {
        (entry.kind, entry.name, key)
        for entry in registry()
        if entry.kind in ROLES and entry.distribution == "specframe-std"
        for key, parameter in inspect.signature(entry.factory).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    assert found == RANGES.keys() | OF_TREES | OF_TARGETS


@pytest.mark.wide(but=["scheduler same-length window"])
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


@pytest.mark.wide
def test_an_option_given_twice_is_refused() -> None:
    """Neither the first value nor the last is taken silently, with a dash or an underscore in the name."""
    with pytest.raises(OptionError, match="option 'a_b' of 'x' is given twice"):
        parse_specification("x,a-b=1,a_b=2")


def test_what_is_true_or_false_is_nothing_else() -> None:
    """A number that Python takes for true or false is refused by name."""
    assert [flag("chat", one) for one in (True, False)] == [True, False]
    with pytest.raises(OptionError, match="chat: expected true or false, got 1"):
        flag("chat", 1)


@pytest.mark.wide
@pytest.mark.parametrize("given", ["a\nb", "\x1b[31m", "\u2028", "\n" * 10**5], ids=lambda one: repr(one)[:20])
def test_a_message_is_one_line_that_can_be_read(given: str) -> None:
    """Whatever a name or a value in it holds, an error is one line of readable length without control characters."""
    message = str(OptionError(f"size: expected a number, got {given}"))
    assert message.startswith("size: expected a number, got ")
    assert message.isprintable()
    assert len(message) < 1100


@pytest.mark.wide
@pytest.mark.parametrize(
    "words", [["models", "show"], ["run", "--target"], ["verify", "--prompts"], ["models", "add", "a"]], ids=" ".join
)
@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\udcff"], ids=["long", "nul", "no text"])
def test_a_name_that_no_file_can_have(words: list[str], name: str) -> None:
    """A name too long for a file, or with a line break in it, is one sentence and status 2, as one that is not there."""
    assert refusal(*words, name)


@pytest.mark.wide
@pytest.mark.parametrize("value", [None, "5", True, float("nan"), INF, 10**400, 0, 3])
def test_a_check_refuses_and_names(value: object) -> None:
    """What lies outside of the range, and what is no finite number, is an error that is a ValueError, too."""
    with pytest.raises(ValueError, match=r"^size: expected a (finite )?number from 1 to 2, got "):
        number("size", value, 1, 2)
    with pytest.raises(SpecframeError, match=r"^size: expected a whole number from 1 to 2, got "):
        whole("size", value, 1, 2)


ASK = """
import json, sys
sys.modules["torch"] = sys.modules["transformers"] = None  # importing either fails
from click.testing import CliRunner
from specframe.cli import cli
for words in json.load(sys.stdin):
    result = CliRunner().invoke(cli, words, prog_name="specframe")
    ended = result.exception is None or isinstance(result.exception, SystemExit)
    print(json.dumps([result.exit_code if ended else repr(result.exception), result.stdout, result.stderr]))
"""


def all_options() -> list[tuple[tuple[str, ...], click.Option]]:
    """Return every option with a value of every command of specframe and the lab."""
    found = ((words, one) for words, command in walk(left_out={("models", "check")}) if words for one in command.params)
    return [(words, one) for words, one in found if isinstance(one, click.Option) and not one.is_flag]


def wrong(kind: click.ParamType) -> list[str]:
    """Return values outside of what a kind of option takes, as they are typed."""
    match kind:
        case ListOf():
            return [*wrong(kind.of), "a,,b", ",", "x=1"]
        case option_types.WholeNumber():
            above = [] if math.isinf(kind.most) else [str(int(kind.most) + 1)]
            return ["", "2.5", "nan", "1e3", "true", "1_0", "9" * 5000, "-5", str(int(kind.least) - 1), *above]
        case option_types.Number():
            ends = ["-1"] if kind.least == 0 else []
            return ["", "x", "nan", "inf", "-inf", "1e999", "true", "0.1_0", "١", *ends, *(["0"] if kind.above else [])]
        case option_types.DraftLength():
            return ["", "0", "-1", "2.5", "1e3", "nan", "nope", "fixed,length", "fixed,length=1,length=2"]
        case option_types.StrategyType():
            name = next(iter(registry().names(kind.role)), None)
            return ["", "nope", *([f"{name}{rest}" for rest in (",", ",x", ",=1", ",x=1,x=2")] if name else [])]
        case option_types.OneOf():
            return ["", "x", kind.words[0].upper()]
        case option_types.Device():
            return ["", "gpu", "cuda:", "cuda:x", "cuda:-1"]
        case Arrivals():
            return ["", "poisson:", "poisson:0", "poisson:nan", "nowhere.txt", "."]
    return [""]


@pytest.mark.wide
def test_wrong_values_of_all_options() -> None:
    """A wrong value of any option of any command is one sentence that names the option, and status 2, without torch."""
    asked = [
        ([*words, f"{max(option.opts, key=len)}={value}"], option)
        for words, option in all_options()
        if words != ("verify",)
        or not isinstance(getattr(option.type, "of", None), option_types.StrategyType)  # told cell by cell
        for value in wrong(option.type)
    ]
    words = json.dumps([words for words, _ in asked])
    done = subprocess.run([sys.executable, "-c", ASK], input=words, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(asked) > 300, done.stderr
    for (words, option), (status, shown, fault) in zip(asked, answers, strict=True):
        assert (status, shown) == (2, ""), (words, fault)
        assert fault.startswith(f"Error: {max(option.opts, key=len)}: "), (words, fault)
        assert "expected " in fault, (words, fault)
        assert fault.count("\n") == 1, (words, fault)


@pytest.mark.wide
def test_every_option_has_a_kind() -> None:
    """An option that is added to a command is checked as it is read."""
    assert [(words, one.name) for words, one in all_options() if not isinstance(one.type, option_types.ValueType)] == []


@pytest.mark.wide
@pytest.mark.parametrize("words", [["run", "--prompts"], ["run", "--config"]], ids=" ".join)
def test_a_device_without_an_end_is_not_read(words: list[str]) -> None:
    """Reading /dev/zero would fill the memory: it is refused in a sentence that names the option."""
    assert re.match(f"{words[-1]}: .*it is a device, not a file", refusal(*words, "/dev/zero"))
