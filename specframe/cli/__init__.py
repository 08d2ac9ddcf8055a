"""The command line. Commands are imported when they are used; none imports torch before it has work for it."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import click

import specframe
from specframe.cli.endings import ending
from specframe.cli.kinds import called
from specframe.cli.watchdog import watched
from specframe.errors import (
    OptionError,
    PluginError,
    SpecframeError,
    SpecframeWarning,
    UnknownNameError,
    sentence,
    shown,
)
from specframe.plugins.registry import registry

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


PASSING = (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError, SpecframeError)
"""What a command may raise: click and :meth:`CommandLine.main` know what to do with it."""


class CommandLine(click.Group):
    """The ``specframe`` command: what is built in, and what plugins offer through the hook for commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the built-in commands, then those of plugins."""
        return [*BUILT_IN, *(name for name in registry().names("command") if name not in BUILT_IN)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; an unknown name is answered with the known ones."""
        if cmd_name in BUILT_IN:
            module, _, attribute = BUILT_IN[cmd_name].partition(":")
            return getattr(importlib.import_module(module), attribute)
        known = registry()
        if cmd_name not in known.names("command") and not known.excuse(cmd_name):
            raise UnknownNameError("command", cmd_name, [*BUILT_IN, *known.names("command")])
        return load(cmd_name)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the arguments; a signal ends that as it ends a command."""
        with ending():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; one that is interrupted ends with a sentence and a status that says so."""
        try:
            with ending(), watched():
                return super().invoke(ctx)
        except click.BadParameter as fault:
            raise (refused_flag(fault) or fault) from fault
        except PASSING:
            raise
        except Exception as error:
            if ctx.invoked_subcommand in (None, *BUILT_IN):
                raise
            raise PluginError(told(str(ctx.invoked_subcommand), error)) from error

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; a fault in what was asked for is one sentence on standard error and status 2."""
        try:
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, io.TextIOWrapper):  # what it cannot encode is escaped, not an error
                    stream.reconfigure(errors="backslashreplace")
            with sentences_for_warnings():
                return super().main(*args, **kwargs)
        except SpecframeError as fault:
            click.echo(f"Error: {fault}", err=True)
            sys.exit(2)


def refused_flag(fault: click.BadParameter) -> OptionError | None:
    """Return one sentence for an environment variable that gives a flag another value than true or false."""
    option, ctx = fault.param, fault.ctx
    if ctx is None or not isinstance(option, click.Option) or not option.is_flag:
        return None
    return OptionError(f"{called(option, ctx)}: expected true or false, got {option.resolve_envvar_value(ctx)!r}")


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


def load(name: str) -> click.Command:
    """Return a plugin's command, or one that fails with the reason why that cannot be had: the others still list."""
    try:
        entry = registry().entry("command", name)
        command = entry.factory
        if not isinstance(command, click.Command):
            raise PluginError(f"{entry}: expected a click.Command, got {shown(command)}")
    except PluginError as error:
        return broken(name, error)
    return command


def told(name: str, error: Exception) -> str:
    """Return what a plugin's command raised, with its distribution and the place."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {sentence(error)}, at {where.filename}:{where.lineno}"
    return f"{registry().entry('command', name)} raised {what}"


def broken(name: str, fault: PluginError) -> click.Command:
    """Return a command that takes anything and raises ``fault``."""

    def callback() -> None:
        raise fault

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(
        name, callback=callback, help=str(fault), short_help="(fails to load)", context_settings=anything
    )


@click.group(
    cls=CommandLine,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "auto_envvar_prefix": "SPECFRAME",  # SPECFRAME_RUN_BATCH_SIZE is --batch-size of run
    },
)
@click.version_option(specframe.__version__, prog_name="specframe")
def cli() -> None:
    """Batched, lossless speculative decoding in which every part is a plugin."""


def main() -> None:
    """Run the ``specframe`` command."""
    cli(prog_name="specframe")
