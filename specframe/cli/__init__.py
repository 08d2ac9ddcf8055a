"""The command line. Commands are imported when they are used; none imports torch before it has work for it."""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import click

import specframe
from specframe.cli.endings import ending
from specframe.errors import PluginError, SpecframeError, SpecframeWarning, UnknownNameError
from specframe.plugins import Entry, registry

BUILT_IN = {
    "run": "specframe.cli.run:run",
    "compare": "specframe.cli.compare:compare",
    "verify": "specframe.cli.verify:verify",
    "reproduce": "specframe.cli.reproduce:reproduce",
    "trace": "specframe.cli.trace:trace",
    "plugins": "specframe.cli.plugins:plugins",
    "models": "specframe.cli.models:models",
}
"""Commands of specframe's own: where each is."""


class CommandLine(click.Group):
    """The ``specframe`` command: what is built in, and what plugins offer through the hook for commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the built-in commands, then those of plugins."""
        return [*BUILT_IN, *(name for name in offered() if name not in BUILT_IN)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; an unknown name is answered with the known ones."""
        if cmd_name in BUILT_IN:
            module, _, attribute = BUILT_IN[cmd_name].partition(":")
            return getattr(importlib.import_module(module), attribute)
        commands = offered()
        if cmd_name not in commands:
            raise UnknownNameError("command", cmd_name, [*BUILT_IN, *commands])
        return load(commands[cmd_name])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the arguments; a signal ends that as it ends a command."""
        with ending():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; one that is interrupted ends with a sentence and a status that says so."""
        with ending():
            return super().invoke(ctx)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; a fault in what was asked for is one sentence on standard error and status 2."""
        try:
            with sentences_for_warnings():
                return super().main(*args, **kwargs)
        except SpecframeError as fault:
            click.echo(f"Error: {fault}", err=True)
            sys.exit(2)


@contextlib.contextmanager
def sentences_for_warnings() -> Iterator[None]:
    """Print specframe's own warnings as a sentence on standard error, without a place in the code; others as ever."""
    with warnings.catch_warnings():
        ever = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, SpecframeWarning):
                click.echo(f"Warning: {message}", err=True)
            else:
                ever(message, category, *place, **more)

        warnings.showwarning = show
        yield


def offered() -> dict[str, Entry]:
    """Return the commands that plugins offer; plugins that get in each other's way are reported and offer none."""
    try:
        return registry().entries.get("command", {})
    except PluginError as fault:
        click.echo(f"specframe: {fault}", err=True)
        return {}


def load(entry: Entry) -> click.Command:
    """Return a plugin's command, or one that fails with the reason why that cannot be had: the others still list."""
    try:
        command = entry.factory
        if not isinstance(command, click.Command):
            kind = type(command).__name__
            raise PluginError(f"command {entry.name!r} of {entry.distribution}: expected a click.Command, got a {kind}")
    except PluginError as error:
        return broken(entry.name, error)
    return command


def broken(name: str, fault: PluginError) -> click.Command:
    """Return a command that takes anything and raises ``fault``."""

    def callback() -> None:
        raise fault

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(
        name, callback=callback, help=str(fault), short_help="(fails to load)", context_settings=anything
    )


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(specframe.__version__, prog_name="specframe")
def cli() -> None:
    """Batched, lossless speculative decoding in which every part is a plugin."""


def main() -> None:
    """Run the ``specframe`` command."""
    cli(prog_name="specframe")
