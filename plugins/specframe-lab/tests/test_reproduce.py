"""``specframe reproduce``: the paper's tables with a small pair, what is kept, what is continued."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from browser import browsing, faults, needs_chromium
from click.testing import Result
from command_line import invoke
from specframe_lab.comparison.comparison_results import RESULTS
from specframe_lab.reproduction import reproduction_page as reproduction
from specframe_testing import zoo

from specframe.models import loading as models

PROMPTS = ["def f(x):", "x = 1", "ab", "import os, sys", "class A:", "for i in range(3):"]
SIZES = ["--match-batch-sizes", "2", "--batch-sizes", "1,2"]
ARRIVING = ["--arrivals", "poisson:50", "--arrival-batch-sizes", "2"]
TOKENS = ["--match-tokens", "8", "--max-new-tokens", "6", "--max-prompt-tokens", "12", "--repeats", "1"]
LOSSLESS = {"plain", "assisted", "ragged", "eqspec", "exspec", "rollback"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name a saved target, a draft that often agrees with it, and prompts; one token is one character."""
    folder = tmp_path_factory.mktemp("pair")
    named = zoo.save_pair(folder)
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps({"turns": [text, "more"]}) + "\n" for text in PROMPTS))
    return [*named, "--prompts", str(questions), "--device", "cpu", "--dtype", "float32"]


def lines(folder: Path) -> list[dict]:
    """Return the kept results."""
    return [json.loads(line) for line in (folder / RESULTS).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def whole(pair: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished reproduction with arrivals, run part by part."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    command = [*pair, *SIZES, *TOKENS, *ARRIVING, "--output", str(folder)]
    first = invoke("reproduce", *command, "--parts", "match")
    assert first.exit_code == 0, first.stderr
    assert {line["cell"]["part"] for line in lines(folder)} == {"match"}
    assert "Not measured yet." in (folder / reproduction.PAGE).read_text(encoding="utf-8")
    rest = invoke("reproduce", *command)
    assert rest.exit_code == 0, rest.stderr
    return folder


@pytest.mark.wide
def test_every_cell_has_its_line(whole: Path) -> None:
    """Plain decoding at batch size 1 is added to table 1, transformers' own runs there only; grouping needs two rows."""
    found = {(line["cell"]["part"], line["scheme"], line["cell"]["batch_size"]) for line in lines(whole)}
    flawed = {"padding", "masking"}
    expected = {("match", scheme, size) for scheme in LOSSLESS | flawed for size in (1, 2)} - {("match", "assisted", 2)}
    speculating = ("ragged", "eqspec", "exspec")
    expected |= {("speed", scheme, size) for scheme in ("plain", *speculating) for size in (1, 2)}
    expected |= {(part, scheme, 2) for part in ("uniform", "random") for scheme in ("bounded", "unbounded")}
    expected |= {("arrivals", scheme, 2) for scheme in speculating}
    expected |= {("bursty", scheme, 2) for scheme in ("ragged", "eqspec, continuous", "exspec", "exspec, unbounded")}
    assert found == expected
    assert len(lines(whole)) == len(expected)


@pytest.mark.wide
def test_what_is_lossless_matches_and_what_is_flawed_does_not(whole: Path) -> None:
    """In float32 every lossless scheme, transformers' own among them, gives plain decoding's ids; flawed ones do not."""
    match = [line for line in lines(whole) if line["cell"]["part"] == "match"]
    reference = next(line["token_ids"] for line in match if line["scheme"] == "plain")
    for line in match:
        assert (line["token_ids"] == reference) == (line["scheme"] in LOSSLESS), line["scheme"]
        if line["scheme"] in LOSSLESS:
            assert (line["ties"], line["bugs"]) == (0, 0)
        else:
            assert "bugs" not in line


@pytest.mark.slow
@needs_chromium
def test_the_page_in_a_browser(whole: Path) -> None:
    """On wide and narrow screens, light and dark, it is no wider than the screen and breaks no rule of accessibility."""
    with browsing() as page:
        page.goto((whole / reproduction.HTML).as_uri())
        assert faults(page) == []


@pytest.mark.wide
def test_what_is_there_is_not_run_again(whole: Path, pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command only writes the page again; another setting is refused with one sentence."""
    monkeypatch.setattr(models, "load_model", lambda *_: pytest.fail("a model was loaded"))
    before = (whole / RESULTS).read_bytes()
    command = [*pair, *SIZES, *TOKENS, *ARRIVING, "--output", str(whole)]
    assert invoke("reproduce", *command).exit_code == 0
    assert (whole / RESULTS).read_bytes() == before
    other = invoke("reproduce", *command, "--match-tokens", "9")
    assert other.exit_code == 2
    assert "made with match: max new tokens 8 where 9 is now asked for" in other.stderr


@pytest.mark.wide
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            ("--parts", "match,latency"),
            "--parts: expected one of match, speed, uniform, random, bursty, arrivals, got 'latency'",
        ),
        (("--match-batch-sizes", "0"), "--match-batch-sizes: expected a whole number of at least 1, got '0'"),
        (("--drafter", "none"), "--drafter: expected one that drafts, got 'none'"),
        (("--parts", "match,arrivals"), "--parts: arrivals needs --arrivals, as in --arrivals poisson:3"),
    ],
)
def test_bad_values_are_refused(
    pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: tuple[str, str], message: str
) -> None:
    """Before any model is loaded, in one sentence."""
    monkeypatch.setattr(models, "load_model", lambda *_: pytest.fail("a model was loaded"))
    result = invoke("reproduce", *pair, *wrong, "--output", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def failing(pair: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """What the command says of table 1 with one prompt at batch sizes 1 and 2 and a cell that fails, and its folder."""

    def fails(*_: object) -> None:
        raise MemoryError("no room")

    folder = tmp_path_factory.mktemp("failing") / "out"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("specframe_lab.reproduction.reproduce.assisted", fails)
        return invoke(
            "reproduce", *pair, *SIZES, *TOKENS, "--limit", "1", "--parts", "match", "--output", str(folder)
        ), folder


@pytest.mark.quick
def test_a_cell_that_fails_is_named(failing: tuple[Result, Path]) -> None:
    """Its reason is on standard error and on both pages with the other cells, and the command exits with status 1."""
    result, folder = failing
    assert result.exit_code == 1
    assert "assisted, batch size 1: MemoryError: no room" in result.stderr
    assert "| ragged | 1 |" in (folder / reproduction.PAGE).read_text(encoding="utf-8")
    for name, start in ((reproduction.PAGE, "- "), (reproduction.HTML, "<li>")):
        page = (folder / name).read_text(encoding="utf-8")
        assert f"{start}match, assisted, batch size 1: MemoryError: no room" in page


def test_batches_that_prompts_do_not_fill_are_told(pair: list[str], failing: tuple[Result, Path]) -> None:
    """Batch sizes above the number of prompts are named on standard error, with ``--dry-run``, too, and on both pages."""
    result, folder = failing
    told = "match: with 1 prompt no batch has more than 1 row, so batch size 2 measures a batch of 1"
    assert result.stderr.splitlines()[0] == told
    assert f"\n- {told}\n" in (folder / reproduction.PAGE).read_text(encoding="utf-8")
    assert f"<li>{told}</li>" in (folder / reproduction.HTML).read_text(encoding="utf-8")
    more = ["--match-batch-sizes", "2,3,4", "--batch-sizes", "1", "--limit", "2", "--parts", "match", "--dry-run"]
    told = "match: with 2 prompts no batch has more than 2 rows, so batch sizes 3, 4 measure a batch of 2"
    assert (
        told in invoke("reproduce", *pair, *more, *TOKENS, "--output", str(folder.parent / "none")).stderr.splitlines()
    )


@pytest.mark.wide(but=["99--"])
@pytest.mark.parametrize(("count", "told"), [(99, "-"), (100, "3.25")])
def test_p99_is_told_of_a_hundred_sequences(count: int, told: str) -> None:
    """P99 of fewer sequences lies between the two slowest: the page has no number in its place."""
    assert reproduction.waits([("ragged", 2, 1.5, 2.5, 3.25, 1, count)]) == [
        ("ragged", "2", "1.50", "2.50", told, str(count), "1", "-")
    ]


@pytest.mark.slow  # reproduces the paper on small models
def test_the_page_as_html(whole: Path) -> None:
    """It has every table and every figure of the Markdown in itself, named for who does not see it, and fetches nothing."""
    markdown = (whole / reproduction.PAGE).read_text(encoding="utf-8")
    html = (whole / reproduction.HTML).read_text(encoding="utf-8")
    assert html.count("<table>") == markdown.count("| --- |\n") > 5
    assert html.count('<div class="scroll" role="region" tabindex="0" aria-label="') == html.count("<table>")
    assert len(re.findall(r'<svg role="img" aria-label="\w+: [^"]+"', html)) == len(re.findall(r"!\[", markdown)) == 6
    assert not re.search(r"https?:|<img|<script|@import|url\((?!#)", html)
    assert "made by specframe" in markdown
    assert "made by specframe" not in html.partition("<body>")[2]
    assert not re.search(r"<td>(eqspec|exspec|ragged|plain decoding)</td>", html)  # they head their rows
    assert html.count("<thead>") == html.count("<tbody>") == html.count("<table>")
    assert not re.search(r"<th[^>]*>\s*</th>|<th>", html)  # none is empty, none without a scope
    for cell in re.findall(r"\| ([^|]*)(?= \|)", markdown):
        assert (
            cell.strip("- ") in html.replace("&#x27;", "'").replace("&quot;", '"').replace("&amp;", "&") or "`" in cell
        )
    for name in ("anatomy", "overhead", "grouping", "throughput", "latency", "tail"):
        assert (whole / f"{name}.png").read_bytes().startswith(b"\x89PNG")
