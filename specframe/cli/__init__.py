"""The command line. Commands are imported at first use, and torch is imported only for decoding, so that help is fast."""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import click

import specframe
from specframe.cli.option_types import source_of
from specframe.cli.quiet_libraries import quiet_libraries
from specframe.cli.signals import exit_on_signals
from specframe.cli.variables import PREFIX, warn_of_misspelt
from specframe.errors import (
    OptionError,
    PluginError,
    SpecframeError,
    SpecframeWarning,
    UnknownNameError,
    literal,
    sentence,
)
from specframe.plugins.missing_packages import NAMES, is_installed
from specframe.plugins.registry import OWN, registry

DISTRIBUTIONS = NAMES["command"]
"""Commands of distributions that may not be installed. They are listed even if their distribution is missing."""

PASSING = (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError, SpecframeError)
"""Errors that a command may raise: click and :meth:`CommandLine.main` handle them."""


class CommandLine(click.Group):
    """The ``specframe`` command. All its commands, built-in ones too, come through the commands hook."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands of specframe's distributions, those that are not installed among them, and those of plugins."""
        return [name for name in {**DISTRIBUTIONS, **registry().entries.get("command", {})} if " " not in name]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; an unknown name is answered with the known ones."""
        known = registry()
        if cmd_name not in known.names("command"):
            if known.lack("command", cmd_name):
                return missing(cmd_name, DISTRIBUTIONS[cmd_name])
            if not known.excuse(cmd_name):
                raise UnknownNameError("command", cmd_name, self.list_commands(ctx))
        return load(cmd_name)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments; a signal meanwhile is handled as during a command."""
        with exit_on_signals():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an interrupted command ends with one sentence and its own exit status."""
        try:
            with exit_on_signals(), watched():
                warn_of_misspelt(ctx)
                return super().invoke(ctx)
        except click.BadParameter as fault:
            raise (refused_flag(fault) or fault) from fault
        except PASSING:
            raise
        except Exception as error:
            if ctx.invoked_subcommand is None:
                raise
            entry = registry().entry("command", ctx.invoked_subcommand)
            if entry.distribution in (OWN, DISTRIBUTIONS["run"]):
                raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {sentence(error)}, at {where.filename}:{where.lineno}"
            raise PluginError(f"{entry} raised {what}") from error

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; a user's error is one sentence on standard error and exit status 2."""
        try:
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, io.TextIOWrapper):  # escape characters that the stream cannot encode
                    stream.reconfigure(errors="backslashreplace")
            with sentences_for_warnings(), quiet_libraries():
                return super().main(*args, **kwargs)
        except SpecframeError as fault:
            click.echo(f"Error: {fault}", err=True)
            sys.exit(2)


def watched() -> contextlib.AbstractContextManager[None]:
    """Watch the calls of strategies inside the block, where a plugin does."""
    known = registry()
    return (
        known.entry("option", "watchdog").factory() if "watchdog" in known.names("option") else contextlib.nullcontext()
    )


def refused_flag(fault: click.BadParameter) -> OptionError | None:
    """Return one sentence for an environment variable that gives a flag another value than true or false."""
    option, ctx = fault.param, fault.ctx
    if ctx is None or not isinstance(option, click.Option) or not option.is_flag:
        return None
    return OptionError(f"{source_of(option, ctx)}: expected true or false, got {option.resolve_envvar_value(ctx)!r}")


@contextlib.contextmanager
def sentences_for_warnings() -> Iterator[None]:
    """Print specframe's warnings as one sentence on standard error, without a code line; leave other warnings unchanged."""
    with warnings.catch_warnings():
        ever = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, SpecframeWarning):
                click.echo(f"Warning: {message}", err=True)
            else:
                ever(message, category, *place, **more)

        warnings.showwarning = show
        yield


class Extended(click.Group):
    """A command with further ones below it, those of plugins too, which have registered them as "command subcommand".

    Those of distributions that are not installed are listed, too.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return its own commands, and those of plugins."""
        names = dict.fromkeys([*registry().entries.get("command", {}), *DISTRIBUTIONS])
        further = [name.partition(" ")[2] for name in names if name.startswith(f"{self.name} ")]
        return [*super().list_commands(ctx), *further]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        known, full = registry(), f"{self.name} {cmd_name}"
        if full in known.names("command"):
            return load(full)
        return missing(full, DISTRIBUTIONS[full]) if known.lack("command", full) else None


def load(name: str) -> click.Command:
    """Return a plugin's command. For one that fails to load, return a command that fails with the reason."""
    try:
        entry = registry().entry("command", name)
        command = entry.factory
        if not isinstance(command, click.Command):
            raise PluginError(f"{entry}: expected a click.Command, got {literal(command)}")
    except PluginError as error:
        return broken(name, error)
    return command


def missing(name: str, distribution: str) -> click.Command:
    """Return a command that fails with the reason why its distribution is missing, and how to install it."""
    fault = PluginError(registry().lack("command", name))
    if distribution in registry().failures:
        return broken(name, fault)
    return broken(
        name, fault, "(left out)" if is_installed(distribution) else f"(not installed: pip install {distribution})"
    )


def broken(name: str, fault: PluginError, listed: str = "(fails to load)") -> click.Command:
    """Return a command that accepts any arguments and raises ``fault``; lists of commands show ``listed``."""

    def callback() -> None:
        raise fault

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, callback=callback, help=str(fault), short_help=listed, context_settings=anything)


@click.group(
    cls=CommandLine,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "auto_envvar_prefix": PREFIX,
    },
)
@click.version_option(specframe.__version__, prog_name="specframe")
def cli() -> None:
    """Batched, lossless speculative decoding in which every part is a plugin."""


def main() -> None:
    """Run the ``specframe`` command."""
    cli(prog_name="specframe")
