"""The options that make a pipeline, and their values from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
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


SHORT = {"--output": "-o", "--limit": "-n", "--batch-size": "-b", "--quiet": "-q", "--verbose": "-v"}
"""Options that have a short form, the same in every command."""


def names(name: str) -> tuple[str, ...]:
    """Return an option's names, the short one first."""
    return (SHORT[name], name) if name in SHORT else (name,)


def whole(name: str, meaning: str, default: int | None = None, least: int = 1) -> Callable[..., Any]:
    """Return an option that takes a whole number."""
    number = WholeNumber(least)
    return click.option(*names(name), metavar="N", type=number, default=default, show_default=True, help=meaning)


PROMPTS = (
    click.argument("prompt", nargs=-1),
    click.option(
        "--prompts",
        metavar="FILE",
        help="Prompts from a file, - for standard input: one per line, or JSON lines with prompt, text or turns.",
    ),
)
"""Where prompts come from."""

LIMIT = whole("--limit", "Only the first N prompts.")

CUT = (
    LIMIT,
    whole("--max-prompt-tokens", "Cut prompts to their first N tokens."),
)
"""What is left out of them."""

MODELS = (
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
)
"""What decodes."""

STRATEGIES = (
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
        "--accept",
        metavar="R",
        default="auto",
        show_default=True,
        help="Acceptance rule: which draft tokens stand; auto: greedy, and block where a temperature is above 0.",
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
    whole("--batch-size", "Rows decoded together.", 8),
)
"""How."""


def draft_length(default: str) -> Callable[..., Any]:
    """Return the option that says how much is drafted."""
    return click.option(
        "--draft-length",
        metavar="K",
        default=default,
        show_default=True,
        help="Tokens drafted per round, or a draft-length policy; auto: goodput, but 5 under rules whose tokens depend on it.",
    )


PLACE = (
    click.option("--device", metavar="D", default="auto", show_default=True, help="cpu, cuda or cuda:N."),
    click.option("--dtype", metavar="T", default="auto", show_default=True, help="float32, bfloat16 or float16."),
)
"""Where, and in what precision."""

EXECUTION = (
    click.option("--attention", metavar="A", default="auto", show_default=True, help="packed, flex or masked."),
    click.option("--graphs", metavar="G", default="auto", show_default=True, help="Record CUDA graphs: on or off."),
    click.option(
        "--layers", metavar="L", default="eager", show_default=True, help="Decoder layers: eager, compiled or auto."
    ),
)
"""How forwards are executed; what comes out is the same."""

SEED = whole("--seed", "Seed of every random choice.", 0, least=0)

PIPELINE = (*MODELS, *STRATEGIES, draft_length("auto"), *PLACE, SEED, *EXECUTION)
"""What `specframe.Pipeline` takes, as options."""


def with_options(*groups: Iterable[Callable[..., Any]]) -> Callable[..., Any]:
    """Return what adds options to a command, in the order given."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed([option for group in groups for option in group]):
            command = option(command)
        return command

    return add


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
    return with_options(PIPELINE, [config])(command)


def read_config(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Take a TOML file's values as the defaults of the command's options."""
    if path is None:
        return
    known = {p.name: p for p in ctx.command.params if isinstance(p, click.Option) and p.name != "config"}
    defaults = {}
    for key, value in load_toml(path).items():
        name = key.replace("-", "_")
        if name not in known:
            raise UnknownNameError(f"option in {path}", key, (str(other).replace("_", "-") for other in known))
        several = value if isinstance(value, list) and known[name].multiple else [value]
        if not all(isinstance(one, str | int | float) for one in several):
            raise OptionError(f"{path}: {key} is a {type(value).__name__}: expected a text, a number, true or false")
        defaults[name] = several if known[name].multiple else value
    ctx.default_map = {**(ctx.default_map or {}), **defaults}


def load_toml(path: str) -> dict[str, Any]:
    """Return what a TOML file holds."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"--config: {path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise OptionError(f"--config: {path} is not TOML: {error}") from error
