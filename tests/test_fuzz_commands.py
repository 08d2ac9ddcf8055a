"""Commands with options and files drawn at random: one sentence for what cannot be, and nobody's file is touched."""

from __future__ import annotations

import os
import random
import re
import shlex
from pathlib import Path
from typing import Any

import click
import fuzzing
import pytest
from click.testing import CliRunner, Result
from command_line import walk
from fuzzing import TEXTS, Takes, number, whole, word

from specframe.cli import cli

STRATEGIES: dict[str, dict[str, dict[str, Takes]]] = {
    "--align": {
        **{name: {} for name in ("auto", "ragged", "eqspec", "exspec", "rollback")},
        "masking": {"positions": word("published", "content")},
        "padding": {"mask": word("published", "content"), "bonus": word("published", "target")},
    },
    "--schedule": {
        "continuous": {"piece": whole(1, 10**9), "wait": number(0)}, "fixed": {}, "same-length": {"window": whole(1, 10**9)},
    },
    "--accept": {
        **{name: {} for name in ("auto", "block", "greedy", "gumbel")},
        "rejection": {"siblings": word("distinct", "independent")},
        "synthetic": {"rate": number(0, 1), "length": number(0)},
        "typical": {"epsilon": number(0, 1, above=True), "delta": number(0, above=True)},
    },
    "--verify": {"auto": {}, "chain": {}},
    "--kv": {"slab": {}, "dynamic": {}},
    "--executor": {"auto": {}, "local": {}},
    "--draft-length": {
        "auto": {}, "fixed": {"length": whole(1), "nodes": whole(1)}, "explicit": {"maximum": whole(1, 64)},
        "goodput": {"maximum": whole(1, 64), "confidence": word("on", "off")},
    },
}  # fmt: skip
"""The strategies of each role, and the values that their options take (docs/strategies.md)."""


def strategy(option: str) -> Takes:
    """Return whether a text names a strategy of a role, with options that it has and values that they take."""

    def takes(text: str) -> bool | None:
        if option == "--draft-length" and text[:1] in ".+-0123456789 \n":
            return whole(1)(text)
        name, *parts = text.split(",")
        known = STRATEGIES[option].get(name)
        pairs = [part.partition("=") for part in parts]
        keys = [key for key, _, _ in pairs]
        if known is None or len(set(keys)) < len(keys) or not set(keys) <= set(known):
            return False
        return False if not all(known[key](value) for key, _, value in pairs) else None  # some ask for an option

    return takes


def text(given: str) -> bool | None:
    """Return whether a text is one at all: which of them mean something does not follow from the option alone."""
    return None if given else False


def amount(given: str) -> bool | None:
    """Return whether a text is an amount of memory; whether a run fits into it does not follow from the option alone."""
    found = re.fullmatch(r"\s*([0-9]{1,15}(\.[0-9]{1,9})?)\s*(([KMG]I?)?B)?\s*", given, re.ASCII | re.IGNORECASE)
    return None if found and float(found[1]) > 0 else False


def quantisation(given: str) -> bool | None:
    """Return whether a text names a quantisation: of those that need no further package there is none."""
    return True if given == "none" else None if given.startswith("none,") else False


RANGES: dict[str, Takes] = {
    "--prompts": text, "--limit": whole(1), "--max-prompt-tokens": whole(1), "--target": text, "--drafter": text,
    **{option: strategy(option) for option in STRATEGIES}, "--batch-size": whole(1),
    "--device": word("auto", "cpu", "cuda", "cuda:0"),
    "--dtype": word("auto", "float32", "bfloat16", "float16", "fp32", "bf16", "fp16"), "--seed": whole(0, 2**64 - 1),
    "--attention": word("auto", "packed", "flex", "masked"), "--graphs": word("auto", "on", "off"),
    "--rounds": word("auto", "deferred", "synchronous"),
    "--layers": word("auto", "eager", "traced", "compiled"), "--load-options": quantisation, "--constraint": lambda given: False,
    "--config": text, "--temperature": number(0), "--top-k": whole(1), "--top-p": number(0, 1, above=True),
    "--min-p": number(0, 1), "--typical-p": number(0, 1, above=True), "--repetition-penalty": number(0, above=True),
    "--presence-penalty": number(), "--min-new-tokens": whole(1), "--stop": text, "--max-time": number(0, above=True),
    "--logprobs": whole(0), "--samples": whole(1, 10_000), "--max-new-tokens": whole(1),
    "--generation-config": word("auto", "none"), "--output": text, "--report": text, "--repeats": whole(1),
    "--warm-up": whole(0), "--arrivals": text, "--arrival-seed": whole(0, 2**64 - 1), "--max-concurrency": whole(1),
    "--slo": text, "--clock": word("wall", "passes"), "--bursty": text, "--sample": whole(1), "--match-batch-sizes": whole(1),
    "--arrival-batch-sizes": whole(1), "--batch-sizes": whole(1), "--match-tokens": whole(1),
    "--frequency-penalty": number(),
    "--parts": word("match", "speed", "uniform", "random", "bursty", "arrivals"),
    "--role": word("drafter", "verifier", "rule", "alignment", "scheduler", "kv", "policy"), "--drafts": text,
    "--resamples": whole(1, 100_000), "--device-profile": text, "--draft-tokens": whole(1), "--draft-layers": whole(1),
    "--context": whole(1), "--memory": amount,
}  # fmt: skip
"""The documented range of every option that takes a value (docs/cli.md, docs/generation.md). No constraint comes with specframe."""

LISTS = {*shlex.split("--match-batch-sizes --arrival-batch-sizes --batch-sizes --parts --draft-tokens --draft-layers")}
"""Options that take lists in every command; those that make a pipeline do so in the commands of a grid."""

FINE: dict[str, tuple[str, ...]] = {
    "--limit": ("1", "2", str(2**70)), "--max-prompt-tokens": ("1", "3", str(10**30)),
    "--drafter": ("none", "prompt-lookup", "prompt-lookup,ngram=3", "auto", "tiny-draft"), "--target": ("tiny",),
    "--align": ("ragged", "eqspec", "exspec", "rollback", "masking,positions=content", "padding"),
    "--schedule": ("continuous", "continuous,piece=2", "fixed", "same-length,window=2,patience=1"),
    "--accept": ("auto", "block", "greedy", "gumbel", "rejection", "synthetic,rate=0.5", "typical"), "--verify": ("chain",),
    "--kv": ("slab", "dynamic"), "--draft-length": ("1", "3", "auto", "goodput,maximum=4", "fixed,length=2"),
    "--batch-size": ("1", "3", str(10**12)), "--device": ("auto", "cpu"), "--dtype": ("auto", "float32", "bfloat16"),
    "--seed": ("0", "7", str(2**64 - 1)), "--attention": ("auto", "masked", "packed"), "--graphs": ("auto", "on", "off"),
    "--rounds": ("auto", "deferred", "synchronous"),
    "--layers": ("eager", "auto"), "--load-options": ("none",), "--executor": ("local",),
    "--temperature": ("0", "0.7", "1e-30", "1e300"), "--top-k": ("1", "3", str(10**30)), "--top-p": ("1", "0.5", "1e-300"),
    "--min-p": ("0", "1", "0.3"), "--typical-p": ("1", "0.5", "1e-300"),
    "--repetition-penalty": ("1", "1.5", "1e-300", "1e300"), "--presence-penalty": ("0", "-1.5", "1e300", "-1e300"),
    "--min-new-tokens": ("1", "2", str(10**30)), "--stop": ("def", "\n", "🦊", "\udcff"), "--max-time": ("1e-9", "5", "1e300"),
    "--logprobs": ("0", "2", str(10**30)), "--samples": ("1", "2", "3"), "--max-new-tokens": ("1", "2", str(10**30)),
    "--generation-config": ("auto", "none"), "--repeats": ("1", "2"), "--warm-up": ("0", "1"),
    "--arrivals": ("poisson:1e300", "poisson:1000", "moments.txt"), "--arrival-seed": ("0", str(2**64 - 1)),
    "--max-concurrency": ("1", "2"), "--slo": ("ttft:200", "ttft:200,tpot:50,e2el:1e9"), "--clock": ("wall", "passes"),
    "--bursty": ("gamma:0.1,burstiness=0.25", "constant:3,ramp-up-strategy=linear,ramp-up-end-rps=9"), "--sample": ("1", "2"),
    "--match-batch-sizes": ("1", "1,2"), "--arrival-batch-sizes": ("2", "1,2"), "--batch-sizes": ("1", "2"),
    "--match-tokens": ("1", "3"), "--parts": ("match", "speed", "match,speed", "arrivals"),
    "--role": ("drafter", "rule", "kv"), "--resamples": ("1", "100000"), "--device-profile": ("h100", "A100"),
    "--draft-tokens": ("1", "1000,2000", str(10**30)), "--draft-layers": ("1", "1,2"), "--context": ("1", str(10**30)),
    "--frequency-penalty": ("0", "-1.5", "1e300", "-1e300"),
    "--memory": ("22GB", "1.5GiB", "999999999999"),
}  # fmt: skip
"""Values inside of the range of an option, its ends among them; none that has layers or attention compiled, which takes half a
minute."""

SLOW = {"--samples", "--repeats", "--warm-up"}
"""Options whose large values are work that was asked for."""

PLACES = (
    *shlex.split(
        "new.jsonl deep/new.jsonl foreign.txt foreign.html foreign.jsonl binary.bin prompts.txt prompts.jsonl"
    ),
)
FILES = (
    *PLACES, *shlex.split("notes loop nowhere.txt . .. - /dev/full /dev/null"), "", "a\0b", "x" * 300, "🦊.txt", "\udcff",
)  # fmt: skip
"""Names of files: there, missing, folders, binary, somebody else's, and such as cannot be."""
NAMED_FILES = {"--prompts", "--output", "--report", "--config", "--arrivals", "--drafts"}

PROMPTS = ("import os", "def f(x):", "", " ", "\0", "\udcff", "é🦊", "a\nb", "x" * 500, "-", "\x1b[31m", "[5, 6]", "{")

ROLES = {
    "--align": "alignment", "--schedule": "scheduler", "--accept": "rule", "--verify": "verifier", "--kv": "KV backend",
    "--drafter": "draft", "--target": "model", "--draft-length": "draft length", "--prompts": "prompt",
}  # fmt: skip
"""What else a sentence may call an option."""

SMALL = {
    "run": shlex.split("--max-new-tokens 2 --limit 2"),
    "compare": shlex.split("--max-new-tokens 2 --limit 1 --repeats 1 --warm-up 0 --batch-size 1 --align ragged"),
    "verify": shlex.split("--max-new-tokens 2 --limit 1"),
    "trace": shlex.split("--max-new-tokens 2 --batch-size 1"),
    "reproduce": shlex.split("--limit 1 --parts match --match-tokens 2 --match-batch-sizes 1 --batch-sizes 1"),
}
"""What keeps a command at milliseconds, where nothing else is drawn."""


LASTING = {("serve",), ("heads",), ("models", "check"), ("predict",), ("plan",)}
"""Commands that run until they are ended, for as long as training takes, or while they measure the machine; they have tests of
their own."""


def commands() -> list[tuple[tuple[str, ...], click.Command]]:
    """Return every command of specframe and the lab."""
    return [found for found in walk(left_out=LASTING) if found[0]]


def long_name(option: click.Parameter) -> str:
    """Return the long name of an option."""
    return max(option.opts, key=len)


def options_of(command: click.Command) -> list[click.Option]:
    """Return a command's options, help aside."""
    return [one for one in command.params if isinstance(one, click.Option)]


@pytest.mark.wide
def test_every_option_has_a_range() -> None:
    """An option that is added to a command has to say here which values it takes."""
    found = {long_name(one) for _, command in commands() for one in options_of(command) if not one.is_flag}
    assert found == RANGES.keys()
    assert found - set(FINE) == NAMED_FILES - {"--arrivals"} | {"--constraint"}


@pytest.fixture
def here(tmp_path: Path, loaded_once: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files of somebody else in it."""
    folder = tmp_path / "a" / "here"
    folder.mkdir(parents=True)
    for name in ("foreign.txt", "foreign.html", "foreign.jsonl"):
        (folder / name).write_text(f"somebody's {name}\n")
    (folder / "binary.bin").write_bytes(bytes(range(256)))
    (folder / "prompts.txt").write_text("import os\n\ndef f(x):\n")
    (folder / "prompts.jsonl").write_text('{"prompt": "import os"}\n{"prompt": [5, 6], "samples": 2}\n')
    (folder / "moments.txt").write_text("0\n0.1\n" * 8)
    (folder / "notes").mkdir()
    (folder / "notes" / "one.txt").write_text("a note")
    (folder / "loop").symlink_to("loop")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SPECFRAME_HOME", str(tmp_path / "home"))
    return folder


def value_of(draw: random.Random, option: str) -> str:
    """Return a value for an option: one inside of its range, a file's name, or anything."""
    if option in NAMED_FILES and draw.random() < 0.8:
        fit = [one for one in FILES if option != "--output" or ("/dev" not in one and one not in (".", ".."))]
        return draw.choice(fit)
    if option in FINE and draw.random() < 0.55:
        return draw.choice(FINE[option])
    if option in STRATEGIES and draw.random() < 0.5:
        return strange_strategy(draw, option)
    anything = [one for one in TEXTS if RANGES[option](one) is False] if option in SLOW else TEXTS
    if option == "--layers" or option == "--attention":
        anything = [one for one in anything if one not in ("compiled", "flex")]
    return draw.choice(anything)


def strange_strategy(draw: random.Random, option: str) -> str:
    """Return a strategy of a role with an option drawn from anything."""
    name = draw.choice([*STRATEGIES[option]])
    key = draw.choice([*STRATEGIES[option][name], "nope", ""])
    return f"{name},{key}={draw.choice(TEXTS)}"


Asked = list[tuple[str, str]]


def words_of(draw: random.Random, words: tuple[str, ...], command: click.Command) -> tuple[list[str], Asked, str]:
    """Return options drawn for a command, what each was given, and how they were put: typed, in the environment or in a file."""
    chosen = fuzzing.some(draw, options_of(command), 4)
    typed: list[str] = []
    asked: Asked = []
    for option in chosen:
        name = long_name(option)
        if option.is_flag:
            typed.append(name)
        else:
            value = value_of(draw, name)
            asked.append((name, value))
            typed.append(f"{name}={value}")
    return typed, asked, draw.choice(("typed", "typed", "typed", "environment", "file"))


def environment_of(words: tuple[str, ...], asked: Asked, command: click.Command) -> dict[str, str]:
    """Return one option as a variable, where it can be one."""
    known = {long_name(one): one for one in options_of(command)}
    fits = [(name, value) for name, value in asked if known[name].allow_from_autoenv and value and "\0" not in value]
    return {f"SPECFRAME_{'_'.join([*words, name[2:]])}".upper().replace("-", "_"): value for name, value in fits[:1]}


def acceptance(option: str, value: str, several: bool) -> bool | None:
    """Return whether an option takes a value, of which a list has several."""
    if not several or option in STRATEGIES or RANGES[option] is text:
        return None if several and option in STRATEGIES and "," in value else RANGES[option](value)
    if not value or "=" in value:
        return False if not value else None
    found = [RANGES[option](part) for part in value.split(",")]
    return False if False in found else None if None in found else True


def contents(folder: Path) -> dict[Path, bytes | None]:
    """Return what every file in a folder holds; links and folders hold nothing."""
    found = {}
    for path, folders, files in os.walk(folder):
        for name in folders:
            found[Path(path, name)] = None
        for name in files:
            file = Path(path, name)
            found[file] = None if file.is_symlink() else file.read_bytes()
    return found


def asked_places(command: str, asked: Asked, arguments: list[str]) -> list[Path]:
    """Return where a command may write."""
    places = [value for name, value in asked if name in ("--output", "--report")]
    places += {"compare": ["comparison"], "reproduce": ["reproduction"], "trace": ["trace.html"]}.get(command, [])
    places += arguments if command == "plugins" else []
    return [Path(os.path.realpath(place)) for place in places if place and "\0" not in place]


def arguments_of(draw: random.Random, words: tuple[str, ...], command: click.Command, pair: list[str]) -> list[str]:
    """Return what a command takes apart from options."""
    if words == ("models", "add"):
        paths = (pair[1], pair[3], *FILES)
        return [draw.choice((*TEXTS, "mine", "tiny")), draw.choice(paths)][: draw.choice((1, 2, 2, 2, 2))]
    expected = [one for one in command.params if isinstance(one, click.Argument)]
    if words == ("plugins", "new"):
        return [draw.choice((*TEXTS, "mine", "yours-2", "notes"))]
    if expected and expected[0].nargs == -1 and expected[0].required:
        return ["import os"]  # no file: what is wrong with an option is reported before files are read
    if expected and expected[0].nargs == -1:
        return fuzzing.some(draw, PROMPTS, 2) if draw.random() < 0.6 else ["import os"]
    return [draw.choice((*TEXTS, "tiny", "ragged", "mine")) for _ in expected]


def require_ending(result: Result, words: tuple[str, ...], asked: Asked, wrong: list[str], given: Any) -> None:
    """Assert that a command ended as commands end, and not with 0 where a value lies outside of its range."""
    fault = result.exception
    assert fault is None or isinstance(fault, SystemExit), (given, repr(fault))
    assert result.exit_code in (0, 1, 2), (given, result.exit_code)
    assert "Traceback" not in result.output, given
    if wrong:  # verify goes on with the other values of a list
        assert result.exit_code in ((1, 2) if words == ("verify",) else (2,)), (given, wrong, "accepted")
    if result.exit_code != 2:
        return
    *before, sentence = [line for line in result.stderr.split("\n") if line.strip()]
    assert sentence.startswith("Error: "), (given, result.stderr)
    allowed = ("Usage: ", "Try ", "Warning: ", "left out: ", "specframe: ")
    assert all(line.startswith(allowed) for line in before), (given, result.stderr)
    open_ones = [name for name, value in asked if name in wrong] or [name for name, _ in asked]
    others = "prompt argument option alias plugin model combination --dry-run --check --resume --quiet"
    open_ones += [] if wrong else [*words, *others.split()]
    open_ones += [name for name, value in asked if RANGES[name](value) is not True]
    known = [one for name in open_ones for one in (name.lstrip("-"), ROLES.get(name, name))]
    fuzzing.require_sentence(sentence, known, given)


@pytest.mark.wide(but=["7"])
@fuzzing.inputs("command")
def test_a_command(number: int, here: Path, saved_pair: list[str]) -> None:
    """It ends with 0, 1, or 2 and a sentence; nothing outside of a range is taken, and no file but the asked ones is written."""
    draw = fuzzing.drawn("command", number)
    words, command = draw.choice(commands())
    typed, asked, source = words_of(draw, words, command)
    arguments = arguments_of(draw, words, command, saved_pair)
    names = [name for name, _ in asked]
    small = SMALL.get(words[0], [])
    steady = [
        word for place in range(0, len(small), 2) if small[place] not in names for word in small[place : place + 2]
    ]
    if small and not {"--target", "--drafter"} & set(names):
        steady += saved_pair
    if words[0] in ("compare", "reproduce") and ("--arrivals" in names or draw.random() < 0.9):
        steady.append("--dry-run")
    environment = environment_of(words, asked, command) if source == "environment" else {}
    if environment:
        typed.remove(next(f"{name}={value}" for name, value in asked if value in environment.values()))
    grid = words[0] in ("compare", "verify", "trace")
    single = {
        "--temperature", "--max-new-tokens", "--repeats", "--warm-up", "--arrival-seed", "--max-concurrency", "--slo", "--clock",
        "--limit", "--max-prompt-tokens",
    }  # fmt: skip
    listed = LISTS | ({"--batch-size"} if words == ("laws",) else set())
    wrong = [
        name
        for name, value in asked
        if acceptance(name, value, name in listed or (grid and name not in single)) is False
    ]
    before = contents(here.parents[1])
    given = [*words, *steady, *typed, "--", *arguments]
    result = CliRunner().invoke(cli, given, prog_name="specframe", env=environment, input="import os\n")
    require_ending(result, words, asked, wrong, (given, environment))
    after = contents(here.parents[1])
    assert {path: after.get(path) for path in before} == before, (given, "changed")
    places = asked_places(words[0], asked, arguments)
    home = here.parents[1] / "home"
    strange = [path for path in after.keys() - before.keys() if not path.is_relative_to(home)]
    for path in strange:
        assert any(path.is_relative_to(place) or place.is_relative_to(path) for place in places), (given, path)
