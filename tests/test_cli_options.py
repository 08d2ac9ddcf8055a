"""Where options come from beside the command line: a configuration file, the environment; and what the shell completes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from command_line import invoke, refusal

from specframe.cli import cli
from specframe.models.aliases import HOME_VARIABLE
from specframe.plugins.registry import registry

pytestmark = pytest.mark.usefixtures("here")


def parsed(name: str, *words: str) -> dict[str, Any]:
    """Return the values of a command's options without running it."""
    above = cli.context_class(cli, info_name="specframe", **cli.context_settings)
    command = cli.get_command(above, name)
    return command.make_context(name, list(words), parent=above).params


SHARED = """
batch-size = 2
seed = 7

[run]
batch-size = 4
stop = ["x", "y"]
check = true

[compare]
align = ["ragged", "masking,positions=content"]
batch_size = [1, 4]
draft-length = [3, "goodput"]
repeats = 5
sort = true

[verify]
align = "ragged,eqspec"
"""


def test_sections() -> None:
    """A command takes what stands at the top and in its own section, which wins; sections of others are passed over."""
    Path("c.toml").write_text(SHARED)
    ours = parsed("run", "--config", "c.toml")
    assert (ours["batch_size"], ours["seed"], ours["stop"], ours["check"]) == (4, 7, ("x", "y"), True)
    assert parsed("trace", "--config", "c.toml")["batch_size"] == [2]
    assert parsed("run", "--config", "c.toml", "--batch-size", "3")["batch_size"] == 3


@pytest.mark.wide
def test_the_documented_file() -> None:
    """The file shown in docs/cli.md is read as the page says."""
    page = (Path(__file__).parent.parent / "docs/cli.md").read_text(encoding="utf-8")
    Path("c.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    ours, grid = parsed("run", "--config", "c.toml"), parsed("compare", "--config", "c.toml")
    assert (ours["batch_size"], ours["seed"], ours["stop"]) == (4, 7, ("\n\n", "def "))
    assert (grid["batch_size"], grid["seed"]) == ([1, 4, 8], [7])
    assert grid["align"] == ["ragged", "eqspec", "masking,positions=content"]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("repeats = 3", "c.toml: repeats is no option of run: expected it in a section [compare] or [reproduce]"),
        ("[rum]\nseed = 3", "unknown section in c.toml 'rum': expected one of "),
        ("batch-size = 1\nbatch_size = 2", "c.toml: batch_size is given twice: expected one value"),
        ("batch-size = [1, 2]", "c.toml: batch-size: expected a text or a number, got a list"),
        ("stop = [1979-05-27]", "c.toml: stop: expected a text or a number, or a list of them, got a date"),
        ("stream = 'yes'", "c.toml: stream: expected true or false, got a text"),
        ("temperature = nan", "temperature in c.toml: expected a number of at least 0, got nan"),
        ("batch-size = 0", "batch-size in c.toml: expected a whole number of at least 1, got 0"),
        ("seed = 1\nseed = 2", "--config: c.toml is not TOML: "),
        (None, "--config: c.toml cannot be read: No such file or directory"),
        ("batch-sise = 2", "unknown option in c.toml 'batch-sise': "),
    ],
)
def test_refused_files(text: str | None, reason: str) -> None:
    """A file that cannot be read, and a value that cannot be, is one sentence that names the file and the key."""
    if text is not None:
        Path("c.toml").write_text(text)
    assert refusal("run", "x", "--config", "c.toml").startswith(reason)


@pytest.mark.wide
def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable goes before the file and the default, and the command line before it; it serves its command alone."""
    Path("c.toml").write_text("batch-size = 2\nseed = 7")
    monkeypatch.setenv("SPECFRAME_RUN_BATCH_SIZE", "5")
    monkeypatch.setenv("SPECFRAME_COMPARE_ALIGN", "ragged,eqspec")
    monkeypatch.setenv("SPECFRAME_RUN_CHECK", "true")
    monkeypatch.setenv("SPECFRAME_RUN_STOP", "a b")
    found = parsed("run", "--config", "c.toml")
    assert (found["batch_size"], found["seed"], found["check"], found["align"]) == (5, 7, True, "ragged")
    assert found["stop"] == ()  # texts hold blanks, by which a variable of several values would be split
    assert parsed("run", "--batch-size", "3")["batch_size"] == 3
    assert parsed("compare")["align"] == ["ragged", "eqspec"]
    monkeypatch.setenv("SPECFRAME_RUN_CONFIG", "c.toml")
    assert parsed("run")["seed"] == 7


@pytest.mark.wide
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the variable, not an option that nobody typed."""
    monkeypatch.setenv("SPECFRAME_RUN_BATCH_SIZE", "many")
    assert refusal("run", "x") == "SPECFRAME_RUN_BATCH_SIZE: expected a whole number of at least 1, got 'many'"
    monkeypatch.setenv("SPECFRAME_RUN_BATCH_SIZE", "1")
    monkeypatch.setenv("SPECFRAME_RUN_CHECK", "maybe")
    assert refusal("run", "x") == "SPECFRAME_RUN_CHECK: expected true or false, got 'maybe'"


@pytest.mark.wide
def test_a_misspelt_variable_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence names the nearest; a variable that is like none may be a plugin's."""
    for name in ("PLUGIN", "RUN_BATCHSIZE", "VERIFY_ALIGN", "HOME", "FUZZ"):
        monkeypatch.setenv(f"SPECFRAME_{name}", "1")
    result = invoke("models")
    assert result.stderr.splitlines() == [
        "Warning: the environment variable SPECFRAME_PLUGIN has no effect: did you mean SPECFRAME_PLUGINS?",
        "Warning: the environment variable SPECFRAME_RUN_BATCHSIZE has no effect: did you mean SPECFRAME_RUN_BATCH_SIZE?",
    ]


def completed(line: str) -> list[tuple[str, str]]:
    """Return what the shell is offered at the end of a line, each with its type."""
    *words, last = line.split(" ")
    found = ShellComplete(cli, {}, "specframe", "_SPECFRAME_COMPLETE").get_completions(words, last)
    return [(item.type, item.value) for item in found]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("run --align ", ["auto", *registry().names("alignment")]),
        ("compare --align ragged,e", ["ragged,eqspec", "ragged,exspec"]),
        ("run --target vic", ["vicuna-68m", "vicuna-7b"]),
        ("run --drafter prom", ["prompt-lookup"]),
        ("verify --drafter none,tiny-dr", ["none,tiny-draft"]),
        ("run --dtype f", ["float32", "float16", "fp32", "fp16"]),
        ("reproduce --parts match,s", ["match,speed"]),
        ("compare --arrivals poi", ["poisson:"]),
        ("run --alig", ["--align"]),
    ],
)
def test_values_are_completed(line: str, offered: list[str]) -> None:
    """The shell is offered names of strategies and models, words, and the last value of a list."""
    assert completed(line) == [("plain", value) for value in offered]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("run --prompts ", "file"),
        ("compare --output ", "dir"),
        ("compare --arrivals m", "file"),
        ("run --target ./", "dir"),
    ],
)
def test_the_shell_completes_files(line: str, kind: str) -> None:
    """Where a file or folder is expected, the shell offers its own."""
    assert completed(line) == [(kind, line.rpartition(" ")[2])]


@pytest.mark.wide
def test_completion_survives_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value before, or a broken file of aliases, costs nothing but the names that cannot be known."""
    assert completed("run --batch-size x --config none.toml --align rag") == [("plain", "ragged")]
    Path("models.toml").write_text("[")
    monkeypatch.setenv(HOME_VARIABLE, ".")
    assert completed("run --target ti") == [("dir", "ti")]
