"""The options that make a pipeline, and their values from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from specframe.errors import OptionError, UnknownNameError


class WholeNumber(click.ParamType):
    """A whole number of at least ``minimum``."""

    name = "number"

    def __init__(self, minimum: int) -> None:
        self.minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; raise :class:`OptionError` when ``value`` is none."""
        option = param.opts[-1] if param else self.name
        try:
            number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else self.minimum - 1
        except ValueError:
            number = self.minimum - 1
        if number < self.minimum:
            raise OptionError(f"{option}: expected a whole number of at least {self.minimum}, got {value!r}")
        return number


PIPELINE = (
    click.option(
        "--target",
        metavar="T",
        show_default="what the drafter drafts for, or tiny",
        help="Model whose output is wanted: an alias, a directory or a hub id.",
    ),
    click.option(
        "--drafter",
        metavar="D",
        default="auto",
        show_default=True,
        help="A draft model, or a drafter by name; none: plain decoding; auto: the model that drafts for the target.",
    ),
    click.option(
        "--align",
        metavar="A",
        default="ragged",
        show_default=True,
        help="Alignment: where tokens sit, and what happens to rejected ones.",
    ),
    click.option(
        "--schedule",
        metavar="S",
        show_default="what the alignment asks for",
        help="Scheduler: which sequences form the next batch.",
    ),
    click.option(
        "--accept", metavar="R", default="greedy", show_default=True, help="Acceptance rule: which draft tokens stand."
    ),
    click.option(
        "--verify", metavar="V", default="chain", show_default=True, help="Verifier: how the target scores a draft."
    ),
    click.option(
        "--kv",
        metavar="B",
        show_default="what the alignment asks for",
        help="KV backend: how keys and values are stored.",
    ),
    click.option(
        "--batch-size",
        metavar="N",
        type=WholeNumber(1),
        default=8,
        show_default=True,
        help="Rows decoded together.",
    ),
    click.option(
        "--draft-length",
        metavar="K",
        default="5",
        show_default=True,
        help="Tokens drafted per round, or a draft-length policy by name.",
    ),
    click.option("--device", metavar="D", default="auto", show_default=True, help="cpu, cuda or cuda:N."),
    click.option("--dtype", metavar="T", default="auto", show_default=True, help="float32, bfloat16 or float16."),
    click.option(
        "--seed", metavar="N", type=WholeNumber(0), default=0, show_default=True, help="Seed of every random choice."
    ),
)
"""What `specframe.Pipeline` takes, as options."""


def pipeline_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that make a pipeline, and ``--config``, to a command."""
    config = click.option(
        "--config",
        metavar="FILE.toml",
        is_eager=True,
        expose_value=False,
        callback=read_config,
        help="Options from a file, a line such as `batch-size = 4` each; the command line wins.",
    )
    for option in (config, *reversed(PIPELINE)):
        command = option(command)
    return command


def read_config(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Take a TOML file's values as the defaults of the command's options."""
    if path is None:
        return
    known = {p.name for p in ctx.command.params if isinstance(p, click.Option)} - {"config"}
    defaults = {}
    for key, value in load_toml(path).items():
        name = key.replace("-", "_")
        if name not in known:
            raise UnknownNameError(f"option in {path}", key, (str(other).replace("_", "-") for other in known))
        if not isinstance(value, str | int | float):
            raise OptionError(f"{path}: {key} is a {type(value).__name__}: expected a text, a number, true or false")
        defaults[name] = value
    ctx.default_map = {**(ctx.default_map or {}), **defaults}


def load_toml(path: str) -> dict[str, Any]:
    """Return what a TOML file holds."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"--config: {path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise OptionError(f"--config: {path} is not TOML: {error}") from error
