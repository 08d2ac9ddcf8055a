"""The command line as a whole: help, errors, commands of plugins, model names."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from command_line import invoke, refusal

import specframe
from specframe.cli import CommandLine
from specframe.cli.quiet_libraries import NO_BARS

HELP = """
import sys
before = {name.partition(".")[0] for name in sys.modules}
from specframe.cli import cli
try:
    cli(["--help"], prog_name="specframe")
finally:
    imported = {name.partition(".")[0] for name in sys.modules} - before - sys.stdlib_module_names
    print("imported:", *sorted(imported))
"""

LIGHT = (
    "attr attrs click packaging pluggy specframe specframe_bitwise specframe_heads specframe_lab specframe_memory specframe_serve "
    "specframe_std "
    "specframe_testing specframe_tiny"
)
"""The packages that the help may import."""

COMMANDS = ("run", "plugins", "models", "compare", "verify", "reproduce", "trace", "serve")

PLUGIN = '''
import click
from specframe import hookimpl

@click.command()
@click.option("--times", default=1)
def greet(times):
    """Greet whoever asks."""
    if times == -1:
        {}["times"]
    if times == -2:
        raise click.UsageError("times: expected a number of at least 0")
    click.echo("hello " * times)

@hookimpl
def specframe_register_commands(register):
    register("greet", greet)
    register("lost", "nowhere.to_be:found")
    register("number", "greeter_plugin:NUMBER")

NUMBER = 4
'''


@pytest.mark.wide
def test_help_imports_nothing_heavy() -> None:
    """The help lists specframe's own commands and the lab's, and imports no package beside the plugins and four small ones."""
    shown = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True).stdout
    assert shown.endswith(f"imported: {LIGHT}\n")
    assert all(f"\n  {name} " in shown for name in COMMANDS)


@pytest.mark.quick
def test_installed_command() -> None:
    """The console script runs the same command line."""
    script = Path(sys.executable).with_name("specframe")
    shown = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
    assert shown == f"specframe, version {specframe.__version__}\n"
    shown = subprocess.run(
        [sys.executable, "-m", "specframe", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert shown == f"specframe, version {specframe.__version__}\n"


@pytest.mark.wide
def test_unknown_command() -> None:
    """A mistyped command is answered with the known ones and the nearest."""
    assert re.fullmatch(
        r"unknown command 'plugin': expected one of .*did you mean 'plugins'\?", refusal("plugin", "list")
    )


@pytest.mark.wide
def test_commands_of_plugins(site: Callable[..., None]) -> None:
    """A plugin's command is listed with its help and runs with its options."""
    site("greeter", PLUGIN)
    assert re.search(r"\n  greet +Greet whoever asks\.\n", invoke("--help").stdout)
    assert invoke("greet", "--times", "2").stdout == "hello hello \n"


@pytest.mark.wide
def test_broken_commands_of_plugins(site: Callable[..., None]) -> None:
    """Commands that do not import, or are none, are listed all the same and say why when they are run."""
    site("greeter", PLUGIN)
    assert invoke("--help").stdout.count("(fails to load)") == 2
    lost, number = refusal("lost", "--any", "thing"), refusal("number")
    assert lost.startswith("command 'lost' of greeter refers to 'nowhere.to_be:found', which does not import")
    assert number.startswith("command 'number' of greeter: register() takes a class, a function or where one is")
    assert number.endswith(", got 4")


@pytest.mark.wide
@pytest.mark.parametrize(("name", "other"), [("greet", "other"), ("run", "specframe-std")])
def test_plugins_in_conflict(site: Callable[..., None], name: str, other: str) -> None:
    """Of two commands of one name, also specframe's own, neither can be used, and both are named; all else can be used."""
    site("greeter", PLUGIN.replace('"greet", greet', f'"{name}", greet'))
    if other == "other":
        site("other", PLUGIN.replace("greeter_plugin:", "other_plugin:"))
    shown = invoke("--help")
    assert shown.exit_code == 0
    assert "plugins" in shown.stdout
    assert invoke("plugins", "list").exit_code == 0
    assert f"command '{name}' is offered by both greeter and {other}" in refusal(name)


@pytest.mark.wide
def test_a_command_of_a_plugin_that_raises_is_named(site: Callable[..., None]) -> None:
    """What a plugin's command raises is one sentence with its distribution and the place; click's own errors stay click's."""
    site("greeter", PLUGIN)
    raised, refused = invoke("greet", "--times", "-1"), invoke("greet", "--times", "-2")
    assert (raised.exit_code, refused.exit_code) == (2, 2)
    assert raised.stderr.startswith("Error: command 'greet' of greeter raised KeyError: 'times', at ")
    assert re.search(r"greeter_plugin\.py:\d+\n$", raised.stderr)
    assert refused.stderr.endswith("Error: times: expected a number of at least 0\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved model, and a home for names that is this test's own."""
    from specframe_testing import zoo

    monkeypatch.setenv("SPECFRAME_HOME", str(tmp_path / "home"))
    zoo.build("qwen3").save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.wide
def test_models_add_and_show(folder: Path) -> None:
    """A name that was added is listed, and shown with the model's shape."""
    added = invoke("models", "add", "mine", str(folder))
    assert (added.exit_code, added.stdout) == (0, f"mine is {folder}\n")
    assert any(line.startswith("mine") and str(folder) in line for line in invoke("models", "list").stdout.splitlines())
    shown = dict(line.split(maxsplit=1) for line in invoke("models", "show", "mine").stdout.splitlines())
    assert (shown["architecture"], shown["vocabulary"], shown["layers"]) == ("Qwen3ForCausalLM", "97", "2")


@pytest.mark.wide
def test_models_remove(folder: Path) -> None:
    """A name of one's own is taken back; one that a plugin offers, and one that nobody does, are refused."""
    invoke("models", "add", "mine", str(folder))
    removed = invoke("models", "remove", "mine")
    assert (removed.exit_code, removed.stdout) == (0, f"mine is no longer an alias of {folder}\n")
    assert "mine" not in invoke("models", "list").stdout
    for name, said in (
        ("mine", "unknown alias of your own 'mine'"),
        ("tiny", "alias 'tiny' is offered by specframe-tiny"),
    ):
        assert refusal("models", "remove", name).startswith(said)


def test_bars_of_loading_stay_out_of_a_standard_error_that_is_no_terminal(monkeypatch):
    """A command, and a process that it begins, shows no bar of a library while it loads models; afterwards all is as before."""
    from transformers.utils import logging

    seen: list[Any] = []

    @click.command()
    def look() -> None:
        seen.append((logging.is_progress_bar_enabled(), os.environ.get(NO_BARS)))

    monkeypatch.delenv(NO_BARS, raising=False)
    monkeypatch.setattr(logging, "_tqdm_active", True)
    monkeypatch.setattr(CommandLine, "get_command", lambda *_: look)
    assert invoke("look").exit_code == 0
    assert seen == [(False, "1")]
    assert (logging.is_progress_bar_enabled(), os.environ.get(NO_BARS)) == (True, None)


@pytest.mark.wide(but=["None"])
@pytest.mark.parametrize("given", [None, "info"])
def test_log_lines_of_libraries_do_not_mix_with_those_of_a_command(given, monkeypatch):
    """A command, and a process that it begins, logs errors of libraries alone, or what the user asks for; then all is as before."""
    import transformers  # noqa: F401 - its logger has a level of its own

    name, seen, before = "TRANSFORMERS_VERBOSITY", [], logging.getLogger("transformers").level

    @click.command()
    def look() -> None:
        seen.append((logging.getLogger("transformers").isEnabledFor(logging.WARNING), os.environ.get(name)))

    monkeypatch.setattr(CommandLine, "get_command", lambda *_: look)
    monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv(name, given)
    logging.getLogger("transformers").setLevel(logging.WARNING)
    try:
        assert invoke("look").exit_code == 0
        assert seen == [(bool(given), given or "error")]
        assert (logging.getLogger("transformers").level, os.environ.get(name)) == (logging.WARNING, given)
    finally:
        logging.getLogger("transformers").setLevel(before)
