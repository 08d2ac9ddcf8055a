"""Prompt files drawn at random, and runs interrupted at random: one result for each prompt, and of good ones the target's ids."""

from __future__ import annotations

import errno
import functools
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import fuzzing
import pytest
import torch
from click.testing import CliRunner, Result
from specframe_std import output_file
from specframe_std.output_file import LockedFile
from specframe_testing import zoo

from specframe.cli import cli
from specframe.reference import reference_decode

pytestmark = pytest.mark.usefixtures("here", "loaded_once")

NEW = 6
"""Tokens decoded per prompt where a line says nothing else."""
TOKENIZER = zoo.character_tokenizer()
TARGET = zoo.build("qwen3")

STRANGE: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2.5, -0.0, 1e308, 10**30, -(10**30), 2**63, 2**64, float("nan"), float("inf")),
    *("", "x", "0.5", "nan", "\0", "é🦊", "\ud83d", "x" * 3000, [], [[]], [1], [-1], [96], [97], [10**30], [True], ["x"], [None]),
    *({}, {"a": 1}, [{}], [{"role": "user"}], [{"role": "user", "content": "x"}], [[1, 2], [3]]),
)  # fmt: skip
"""Values of JSON where something else is expected."""

PARAMETERS: dict[str, Callable[[Any], bool]] = {
    "temperature": lambda v: is_number(v, 0), "top_k": lambda v: is_whole(v, 0),
    "top_p": lambda v: is_number(v, 0, 1) and v > 0, "min_p": lambda v: is_number(v, 0, 1),
    "typical_p": lambda v: is_number(v, 0, 1) and v > 0, "repetition_penalty": lambda v: is_number(v, 0) and v > 0,
    "presence_penalty": lambda v: is_number(v), "min_new_tokens": lambda v: is_whole(v, 0),
    "frequency_penalty": lambda v: is_number(v),
    "sequence_bias": lambda v: isinstance(v, list) and all(map(is_bias, v)),
    "bad_words_ids": lambda v: (
        isinstance(v, list) and all(isinstance(w, list) and len(w) > 0 and all(map(is_id, w)) for w in v)
    ),
    "suppress_tokens": lambda v: isinstance(v, list) and all(map(is_id, v)), "forced_eos": lambda v: isinstance(v, bool),
    "stop": lambda v: (
        (isinstance(v, str) and v != "") or (isinstance(v, list) and all(isinstance(t, str) and t != "" for t in v))
    ),
    "max_new_tokens": lambda v: is_whole(v, 1), "max_time": lambda v: is_number(v, 0) and v > 0,
    "logprobs": lambda v: is_whole(v, 0), "samples": lambda v: is_whole(v, 1) and v <= 10_000,
}  # fmt: skip
"""Which values the parameters of a request take (docs/generation.md); null is none given, but for ``samples``."""


def is_number(value: Any, least: float = float("-inf"), most: float = float("inf")) -> bool:
    """Return whether a value is a finite number in a range."""
    inside = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1.7976931348623157e308
    return inside and least <= value <= most


def is_whole(value: Any, least: int) -> bool:
    """Return whether a value is a whole number of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_bias(value: Any) -> bool:
    """Return whether a value is a pair of token ids and a number."""
    pair = isinstance(value, list) and len(value) == 2 and isinstance(value[0], list) and len(value[0]) > 0
    return pair and all(map(is_id, value[0])) and is_number(value[1])


def is_id(value: Any) -> bool:
    """Return whether a value is an id of the vocabulary."""
    return is_whole(value, 0) and value < zoo.VOCABULARY


@attrs.frozen
class Line:
    """One prompt as a file has it, and what has to come of it."""

    entry: Any
    """What its JSON is, or a text that is no JSON."""
    ids: list[int] | None = None
    """The token ids of a good prompt, or None for it may be good or not."""
    bad: bool = False
    """It cannot be decoded."""
    new: int = NEW
    samples: int | None = 1
    """How many results it has, or None: not said."""


def good(draw: random.Random) -> Line:
    """Return a prompt that decodes greedily, in one of the forms, with parameters that leave its ids as they are."""
    text = "".join(draw.choice(zoo.CHARACTERS[2:]) for _ in range(draw.randint(1, 9))).strip() or "x"
    ids = TOKENIZER(text).input_ids
    text_or_ids = draw.choice(({"prompt": text}, {"text": text}, {"turns": [text, "more"]}, {"prompt": ids}))
    entry: dict[str, Any] = draw.choice((text_or_ids, {"prompt_token_ids": ids}, {"instruction": text}))
    new, samples = draw.choice((NEW, 1, 3)), draw.choice((1, 1, 2))
    extra = {"max_new_tokens": new, "samples": samples, "logprobs": 2, "id": 5, "temperature": 0, "top_p": None}
    kept = {key: value for key, value in extra.items() if draw.random() < 0.4}
    return Line(entry | kept, ids, new=kept.get("max_new_tokens", NEW), samples=kept.get("samples", 1))


def strange_parameter(draw: random.Random) -> Line:
    """Return a good prompt with a parameter that may be anything."""
    name = draw.choice([*PARAMETERS])
    value = draw.choice([one for one in STRANGE if name != "samples" or not PARAMETERS[name](one) or one < 5])
    wrong = not PARAMETERS[name](value) and (value is not None or name == "samples")
    return Line({"prompt": "ab", name: value}, bad=wrong, samples=1 if wrong else None)


def strange_prompt(draw: random.Random) -> Line:
    """Return a key that holds a prompt with anything for its value."""
    keys = "prompt text turns messages conversations instruction prompt_token_ids nothing"
    key = draw.choice(keys.split())
    return Line({key: draw.choice(STRANGE)}, bad=key == "nothing")


def damaged(draw: random.Random) -> Line:
    """Return a line of JSON with some of its characters gone, changed or doubled."""
    line = json.dumps(good(draw).entry)
    place = draw.randrange(len(line))
    return Line(
        draw.choice((line[:place], line[place:], line[:place] + draw.choice('{}[]",:\\x') + line[place:])), samples=None
    )


def hopeless(draw: random.Random) -> Line:
    """Return what cannot be decoded, whatever is made of it."""
    texts = (
        '{"prompt": "a", "prompt": "b"}', '{"prompt": "a", "samples": 1, "samples": 2}', '{"prompt": ' + "[" * 100_000,
        '{"prompt": ' + "9" * 5000 + "}", '{"prompt": "\\ud83d"}', "{'prompt': 'a'}", "[1, 2", "NaN", "true",
    )  # fmt: skip
    prompts = [{"prompt": given} for given in ("x" * 500, [97], [-1], [])]
    wrong = ({"max_new_tokens": 0}, {"top_k": 3}, {"min_new_tokens": 9, "max_new_tokens": 3}, {"suppress_tokens": [97]})
    lines = (*texts, *prompts, *({"prompt": "a", **one} for one in (*wrong, {"samples": 10**12})))
    return Line(draw.choice(lines), bad=True)


def drawn_lines(draw: random.Random) -> list[Line]:
    """Return the prompts of a file, one good one among them."""
    kinds = (good, good, strange_parameter, strange_prompt, damaged, hopeless)
    lines = [draw.choice(kinds)(draw) for _ in range(draw.randint(1, 9))]
    lines.insert(draw.randint(0, len(lines)), good(draw))
    return [line for line in lines if not isinstance(line.entry, str) or line.entry.strip()]


def typed(line: Line) -> str:
    """Return a line of JSON."""
    return line.entry if isinstance(line.entry, str) else json.dumps(line.entry)


def written(draw: random.Random, lines: list[Line]) -> tuple[str, list[Line]]:
    """Write the prompts to a file in a format that can hold them; return its name and those that are in it."""
    if draw.random() < 0.75:
        name = draw.choice(("in.jsonl", "in.ndjson"))
        Path(name).write_text(
            "\n".join(map(typed, lines)) + draw.choice(("", "\n", "\n\n")), encoding="utf-8", errors="surrogatepass"
        )
        return name, lines
    objects = [line for line in lines if not isinstance(line.entry, str)]
    Path("in.json").write_text(json.dumps([line.entry for line in objects]))
    return "in.json", objects


@functools.cache
def truth(ids: tuple[int, ...], new: int) -> list[int]:
    """Return the target's own continuation."""
    with torch.inference_mode():
        return reference_decode(TARGET, list(ids), new, {zoo.EOS})


def settings(draw: random.Random) -> list[str]:
    """Return how a file is decoded."""
    return [
        f"--batch-size={draw.choice((1, 2, 3, 8))}",
        f"--align={draw.choice(('ragged', 'eqspec', 'exspec', 'rollback'))}",
        f"--draft-length={draw.choice(('1', '3', 'auto'))}",
        f"--drafter={draw.choice(('none', 'prompt-lookup', 'model'))}",
        f"--max-new-tokens={NEW}",
    ]


def run(pair: list[str], options: list[str], *more: str) -> Result:
    """Run ``specframe run``; the draft model takes the place of the drafter called model."""
    options = [f"--drafter={pair[3]}" if option == "--drafter=model" else option for option in options]
    return CliRunner().invoke(cli, ["run", *pair[:2], *options, "--output", "out.jsonl", *more], prog_name="specframe")


def records() -> list[dict[str, Any]]:
    """Return the results in the file."""
    return [json.loads(line) for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]


def require_results(lines: list[Line], found: list[dict[str, Any]], given: Any) -> None:
    """Assert that every prompt has its results, once, the good ones the target's ids, the others an error or some tokens."""
    counts = Counter((one["index"], one.get("sample", 0)) for one in found)
    assert set(counts.values()) == {1}, (given, counts)
    for index, line in enumerate(lines):
        mine = [one for one in found if one["index"] == index]
        assert [one.get("sample", 0) for one in mine] == list(range(len(mine))), (given, index)
        assert mine, (given, index, "lost")
        if line.samples:
            assert len(mine) in ((line.samples,) if line.ids else (1, line.samples)), (given, index)
        for one in mine:
            if line.ids:
                assert one["token_ids"] == truth(tuple(line.ids), line.new), (given, index, one)
            if line.bad:
                assert (one["finish_reason"], one["token_ids"]) == ("error", []), (given, index, one)
            if one["finish_reason"] == "error":
                fuzzing.require_sentence(one["error"], [""], (given, index))
    assert max(one["index"] for one in found) < len(lines), given


@pytest.mark.wide(but=["11"])
@fuzzing.inputs("prompts")
def test_a_file_of_prompts(number: int, saved_pair: list[str]) -> None:
    """Every prompt has its results, once; the good ones are the target's own tokens, whatever else the file has."""
    draw = fuzzing.drawn("prompts", number)
    name, lines = written(draw, drawn_lines(draw))
    options = settings(draw)
    given = (options, Path(name).read_text(encoding="utf-8", errors="surrogatepass"))
    result = run(saved_pair, options, "--prompts", name)
    assert result.exception is None or isinstance(result.exception, SystemExit), (given, repr(result.exception))
    if not any(line.ids for line in lines):  # none is left in an array: it may be refused as a whole
        assert result.exit_code in (0, 1, 2), given
        return
    assert result.exit_code in (0, 1), (given, result.stderr)
    assert "Traceback" not in result.output, given
    found = records()
    require_results(lines, found, given)
    assert result.exit_code == any(one["finish_reason"] == "error" for one in found), given


class Killed(BaseException):
    """The process is gone: nothing in it gets to run."""


def interrupting(draw: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a random write fail: by a signal, a full disk or a kill, before, within or after a line, or as the file is replaced."""
    left, fault = (
        draw.randint(0, 8),
        draw.choice((KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device"), Killed())),
    )
    append, replace, share = LockedFile.append, output_file.replace, draw.random()

    def write(self: LockedFile, line: str, more: str = "") -> None:
        nonlocal left
        left -= 1
        if left != 0:
            append(self, line, more)
            return
        if isinstance(fault, Killed):
            with self.path.open("ab") as file:
                file.write(output_file.encode_text(line)[: int(share * len(line))])
            raise fault
        with self.faults(more):
            raise fault

    def put(path: Path, content: str | bytes | Iterable[bytes]) -> None:
        nonlocal left
        content = content if isinstance(content, str | bytes) else b"".join(content)
        if left <= 0 and path.name == "out.jsonl" and isinstance(fault, Killed):
            path.with_name(f".{path.name}.0.part").write_bytes(
                output_file.encode_text(content)[: int(share * len(content))]
            )
            raise fault
        replace(path, content)

    monkeypatch.setattr(LockedFile, "append", write)
    monkeypatch.setattr(output_file, "replace", put)


@pytest.mark.wide
@fuzzing.inputs("interruption")
def test_an_interrupted_run(number: int, saved_pair: list[str]) -> None:
    """However often it is interrupted, resumed it holds every result once, with the ids of a run without interruption."""
    draw = fuzzing.drawn("interruption", number)
    name, lines = written(draw, drawn_lines(draw))
    options = settings(draw)
    run(saved_pair, options, "--prompts", name)
    whole = {(one["index"], one.get("sample", 0)): one for one in records()}
    os.unlink("out.jsonl")
    given = (options, Path(name).read_text(encoding="utf-8", errors="surrogatepass"))
    for _ in range(draw.randint(1, 4)):
        held = keys_held()
        with pytest.MonkeyPatch.context() as patched:
            interrupting(draw, patched)
            try:
                result = run(saved_pair, options, "--prompts", name, "--resume")
            except Killed:
                Path(".out.jsonl.lock").touch()  # as it is left behind
            else:
                assert result.exit_code in (0, 1, 2, 130), (given, result.stderr, result.exception)
                assert "Traceback" not in result.output, given
        assert held <= keys_held(), given
    result = run(saved_pair, options, "--prompts", name, "--resume")
    assert result.exit_code in (0, 1), (given, result.stderr, result.exception)
    found = records()
    assert [(one["index"], one.get("sample", 0)) for one in found] == sorted(whole), given
    for one in found:
        before = whole[one["index"], one.get("sample", 0)]
        assert (one["token_ids"], one["finish_reason"]) == (before["token_ids"], before["finish_reason"]), given
    require_results(lines, found, given)


def keys_held() -> set[tuple[int, int]]:
    """Return the prompts and samples that whole lines have results of; one with an error is tried again, and may go."""
    path = Path("out.jsonl")
    *lines, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
    kept = map(json.loads, lines)
    return {(one["index"], one.get("sample", 0)) for one in kept if one["finish_reason"] != "error"}
