"""How much a grid's command shows: the options ``--quiet`` and ``--verbose``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import click

from specframe.cli.options import names
from specframe.errors import OptionError

SHOWN = (
    click.option(*names("--quiet"), is_flag=True, help="Show no progress, tables and warnings: only what was found."),
    click.option(*names("--verbose"), is_flag=True, help="Show the versions and the device as well."),
)


def prepare(quiet: bool, verbose: bool, devices: Iterable[str]) -> None:
    """Leave out warnings, or show the environment; transformers draws and remarks nothing in either case.

    Args:
        quiet, verbose: what was asked for.
        devices: those of the grid's cells.

    Raises:
        OptionError: both were asked for.
    """
    if quiet and verbose:
        raise OptionError("--quiet and --verbose: expected one of them, got both")
    import transformers

    transformers.logging.disable_progress_bar()  # it would draw over what a command shows
    transformers.logging.set_verbosity_error()  # it remarks on pad ids in prompts
    if quiet:
        warnings.simplefilter("ignore")
    if verbose:
        from specframe.cli.display import show_conditions
        from specframe.cli.environment import environment

        show_conditions("environment", environment(set(devices)))
