"""The command line in the process of a test."""

from __future__ import annotations

from click.testing import CliRunner, Result

from specframe.cli import cli


def invoke(*words: str, given: str | None = None) -> Result:
    """Run a command with ``given`` as its standard input; an exception that is not an exit is raised."""
    result = CliRunner().invoke(cli, words, prog_name="specframe", input=given)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refusal(*words: str) -> str:
    """Return the one sentence that a command line is refused with, before anything is printed."""
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("Error: ").strip()
