"""Runs of any number of prompts: the first process holds those that are being decoded, and their results do not depend on that."""

from __future__ import annotations

import gc
import io
import json
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from specframe_std import result_file
from specframe_std.prompts.files import open_prompts
from specframe_testing import fakes, harness, zoo

from specframe.contracts.requests import Request, Result
from specframe.contracts.round import Sequence
from specframe.engine import request_stream
from specframe.engine.local_engine import LocalEngine
from specframe.errors import ContractError
from specframe.pipeline import Pipeline
from specframe.text.prompts.prompt import Prompt
from specframe.text.sampling import Sampling

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
LENGTHS = [*range(2, 40, 4), 3, 60, 5]
NEW = 8


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine has four times as many requests as rows."""
    monkeypatch.setattr(request_stream, "AHEAD", 1)


def asked(pipe: Pipeline, prompts: list[list[int]], new: int, how: Sampling) -> Iterator[list[Request | Result]]:
    """Yield the requests of one prompt after the other."""
    settings = pipe.requests.setting(how, new)
    for index, prompt in enumerate(prompts):
        yield pipe.requests.of(index, prompt, new, settings)


def facts(found: Any) -> list[tuple[Any, ...]]:
    """Return everything of results that does not depend on time, in the order of prompts."""
    ordered = sorted(found, key=lambda one: (one.index, one.sample))
    return [(one.index, one.sample, one.token_ids, one.finish_reason, one.error) for one in ordered]


@pytest.mark.wide(but=["greedy"])
@pytest.mark.parametrize(
    ("how", "more"),
    [
        (Sampling(), {"align": "ragged"}),
        (Sampling(), {"align": "exspec"}),
        (Sampling(temperature=0.8, samples=2), {"accept": "gumbel"}),
        (Sampling(temperature=0.8), {"accept": "rejection"}),
    ],
    ids=["greedy", "exspec", "gumbel", "rejection"],
)
def test_tokens_do_not_depend_on_what_is_ahead(
    how: Sampling, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of prompts that grow, wrong ones among them, results are those of a run that had all at once; caches are made a few times."""
    prompts = harness.random_prompts(LENGTHS, 61, seed=3)
    prompts[4], prompts[8] = [], [99]
    pipe = harness.pipeline(TARGET, DRAFT, batch_size=2, draft_length=3, seed=4, **more)
    made: list[int] = []
    room = LocalEngine.make_room
    monkeypatch.setattr(LocalEngine, "make_room", lambda self, tokens: made.append(tokens) or room(self, tokens))
    ahead = 0
    given = Counter[str]()

    def counted() -> Iterator[list[Request | Result]]:
        for one in asked(pipe, prompts, NEW, how):
            given["asked"] += 1
            yield one

    found = []
    for result in pipe.decode_fed(counted()):
        found.append(result)
        ahead = max(ahead, given["asked"] - len({one.index for one in found}))
    assert facts(found) == facts(pipe.generate(prompts, NEW, sampling=how))
    window = 4 * pipe.composition.scheduler.rows(2)
    assert ahead <= window + how.samples
    assert (len(made) > 0) == (window < len(prompts))
    assert len(made) <= 10
    assert pipe.report.errors == 2
    pieces: dict[tuple[int, int], list[int]] = {}
    for chunk in pipe.stream_fed(asked(pipe, prompts, NEW, how)):
        pieces.setdefault((chunk.index, chunk.sample), []).extend(chunk.token_ids)
    assert [*sorted(pieces.items())] == [((index, sample), ids) for index, sample, ids, *_ in facts(found)]


def test_a_scheduler_that_fails_is_named() -> None:
    """Where the scheduler cannot say how many rows there are, the error names it."""
    pipe = harness.pipeline(TARGET, DRAFT, batch_size=2)
    pipe.composition.scheduler.rows = lambda size: size / 0  # type: ignore[method-assign]
    with pytest.raises(ContractError, match=r"^scheduler .*rows\(\) raised ZeroDivisionError"):
        [*pipe.decode_fed(asked(pipe, [[5]], NEW, Sampling()))]


class Line(str):
    """A line of results that can be seen to be gone."""

    __slots__ = ("__weakref__",)


@pytest.mark.wide
def test_a_run_holds_what_it_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither prompts nor results pile up in the process of a run, nor in that of its resumption; the file has all of them."""
    count = 160
    prompts, out = tmp_path / "p.jsonl", tmp_path / "o.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"a{place % 7}"}) + "\n" for place in range(count)))
    lines: weakref.WeakSet[Line] = weakref.WeakSet()
    most: Counter[str] = Counter()
    write = result_file.ResultFile.write

    def dumps(*given: Any, **more: Any) -> Line:
        line = Line(json.dumps(*given, **more))
        lines.add(line)
        return line

    def watched(self: result_file.ResultFile, kept: dict[str, Any]) -> None:
        write(self, kept)
        if kept["index"] % 40 == 39:
            held = Counter(type(one).__name__ for one in objects() if id(one) not in known)
            for kind in (*held, "Line"):
                most[kind] = max(most[kind], held[kind], len(lines) * (kind == "Line"))

    def objects() -> list[Any]:
        return [one for one in gc.get_objects() if isinstance(one, Prompt | Request | Result | Sequence)]

    monkeypatch.setattr(result_file.ResultFile, "write", watched)
    monkeypatch.setattr(result_file, "json", type("json", (), {"dumps": dumps, "loads": json.loads}))
    pair = zoo.save_pair(tmp_path / "pair")
    command = ["run", *pair[:2], "--drafter", "none", "--max-new-tokens", "1", "--batch-size", "4", "--quiet"]
    command += ["--prompts", str(prompts), "--output", str(out)]
    gc.collect()
    others = objects()  # other tests have some, which are held here, so that none of the run's gets the number of one
    known = {*map(id, others)}
    for more in ([], ["--resume"]):
        most.clear()
        done = invoke(*command, *more)
        assert done.exit_code == 0, done.output
        assert most
        assert max(most.values()) <= 40, most
        whole = out.read_text().splitlines(keepends=True)
        assert [json.loads(line)["index"] for line in whole] == [*range(count)]
        out.write_text("".join(whole[60:30:-1] + whole[3:7]))


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["file", "pipe", "stdin"])
def test_prompts_are_read_as_often_as_they_are_asked_for(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file, a pipe and standard input give the same prompts in every loop, one that was left in the middle, too."""
    path, content = tmp_path / "p", b"\xef\xbb\xbfa\r\n\nb\nc"
    if kind == "file":
        path.write_bytes(content)
    elif kind == "pipe":
        os.mkfifo(path)
        threading.Thread(target=path.write_bytes, args=(content,)).start()
    else:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    found = open_prompts("-" if kind == "stdin" else str(path))
    assert next(iter(found)).text == "a"
    for _ in range(2):
        assert [prompt.text for prompt in found] == ["a", "b", "c"]
