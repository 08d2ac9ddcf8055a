"""The command line in the process of a test."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import click
from click.testing import CliRunner, Result

from specframe.cli import cli


def invoke(*words: str, given: str | None = None) -> Result:
    """Run a command with ``given`` as its standard input; an exception that is not an exit is raised."""
    result = CliRunner().invoke(cli, words, prog_name="specframe", input=given)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def walk(
    command: click.Command = cli, *words: str, left_out: Collection[tuple[str, ...]] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command and those below it, but for those left out, with the words that lead there."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (*words, name) not in left_out:
                yield from walk(command.get_command(context, name), *words, name, left_out=left_out)


def refusal(*words: str) -> str:
    """Return the one sentence that a command line is refused with, before anything is printed."""
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("Error: ").strip()
