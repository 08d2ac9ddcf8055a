"""Command-line options for a pipeline, and other options that several commands share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.core import ParameterSource

from specframe.cli.option_types import (
    Bytes,
    Device,
    DraftLength,
    File,
    ModelType,
    OneOf,
    StrategyType,
    TextType,
    ValueType,
    WholeNumber,
)
from specframe.errors import OptionError, PluginError
from specframe.plugins.recipe import DEFAULTS, FIXED_LENGTH, GRAPHS, LAYERS, PLAIN, ROUNDS
from specframe.plugins.registry import registry
from specframe.value_checks import LARGEST_SEED
from specframe_std.command_options.config import read_config

SHORT = {"--output": "-o", "--limit": "-n", "--batch-size": "-b", "--quiet": "-q", "--verbose": "-v"}
"""Options that have a short form, the same in every command."""


def names(name: str) -> tuple[str, ...]:
    """Return an option's names, the short one first."""
    return (SHORT[name], name) if name in SHORT else (name,)


def whole(
    name: str, meaning: str, default: int | None = None, least: int = 1, most: float = math.inf
) -> Callable[..., Any]:
    """Return an option that takes a whole number."""
    number = WholeNumber(least, most)
    return click.option(*names(name), metavar="N", type=number, default=default, show_default=True, help=meaning)


class Once(click.Option):
    """An option that gives its callback every value that was typed, so that a second one can be refused."""

    def __init__(self, *names: Any, **options: Any) -> None:
        super().__init__(*names, **(options | {"multiple": True}))

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Return the variable's value as one: a path may hold blanks."""
        found = self.resolve_envvar_value(ctx)
        return None if found is None else (found,)


class Open(click.Option):
    """An option whose help names, in place of each ``{purpose}``, the default that a plugin registers for the purpose."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option's names and its help."""
        record = super().get_help_record(ctx)
        return record and (record[0], re.sub(r"\{(.*?)\}", lambda found: default_for(found[1]), record[1]))


def default_for(purpose: str) -> str:
    """Return the default for a purpose as help texts show it."""
    try:
        return registry().default(purpose)
    except PluginError:
        return "none that is installed"


PROMPTS_FILE = click.option(
    "--prompts",
    metavar="FILE",
    type=File(),
    help="Prompts from a file, - for standard input: one per line, JSON, CSV, Parquet; or hf:NAME, a data set; or "
    "a benchmark set, such as mt-bench.",
)

LIMIT = whole("--limit", "Only the first N prompts.")


def choice_option(
    name: str, metavar: str, kind: ValueType, meaning: str, default: str | None = None, shown: bool | str = True
) -> Callable[..., Any]:
    """Return an option with a default word, by default the recipe's; ``shown`` is what the help says of it."""
    default = default or getattr(DEFAULTS, name.removeprefix("--").replace("-", "_"))
    return click.option(name, metavar=metavar, type=kind, cls=Open, default=default, show_default=shown, help=meaning)


MODELS = (
    choice_option(
        "--target",
        "T",
        ModelType(),
        "Model whose output is wanted: an alias, a directory or a hub id.",
        shown="the drafter's target, or {target}",
    ),
    choice_option(
        "--drafter",
        "D",
        ModelType(drafters=True),
        f"A draft model, or a drafter by name; {PLAIN}: plain decoding; auto: the model that drafts for the target.",
    ),
)
"""Options for target and drafter."""

STRATEGIES = (
    choice_option(
        "--align",
        "A",
        StrategyType("alignment", "auto"),
        "Alignment: slots of tokens in the cache, and removal of rejected tokens; auto: {alignment}.",
    ),
    choice_option(
        "--schedule",
        "S",
        StrategyType("scheduler"),
        "Scheduler: which sequences form the next batch.",
        shown="the alignment's choice",
    ),
    choice_option(
        "--accept",
        "R",
        StrategyType("acceptance rule", "auto"),
        "Acceptance rule: which draft tokens are accepted; auto: {greedy decoding}, and {sampling} where a temperature is above 0, "
        "for trees {sampling with trees} or {sampling with drawn trees}.",
    ),
    choice_option(
        "--verify", "V", StrategyType("verifier", "auto"), "Verifier: how the target scores a draft; auto: {verifier}."
    ),
    choice_option(
        "--kv",
        "B",
        StrategyType("KV backend"),
        "KV backend: how keys and values are stored.",
        shown="the alignment's choice",
    ),
    whole("--batch-size", "Rows decoded together.", DEFAULTS.batch_size),
)
"""Strategy options."""


def draft_length(default: str) -> Callable[..., Any]:
    """Return the option for the draft length."""
    meaning = (
        "Tokens drafted per round, or a draft-length policy; auto: {adaptive draft length}, but "
        f"{FIXED_LENGTH} under rules whose tokens depend on it."
    )
    return choice_option("--draft-length", "K", DraftLength(), meaning, default)


DTYPES = ("auto", "float32", "bfloat16", "float16", "fp32", "bf16", "fp16")
"""Values of --dtype."""

PLACE = (
    choice_option("--device", "D", Device(), "cpu, cuda or cuda:N."),
    choice_option("--dtype", "T", OneOf(*DTYPES), "float32, bfloat16 or float16."),
    choice_option(
        "--load-options",
        "Q",
        TextType(),
        "Quantisation of the models' weights, by name with options, as torchao-int8-weight-only; none,key=value: "
        "other options of from_pretrained.",
        shown="weights as they are stored",
    ),
)
"""Options for device and precision, and others of loading."""

EXECUTION = (
    choice_option(
        "--attention",
        "A",
        StrategyType("attention backend", "auto"),
        "An attention backend, as packed, flex or masked.",
    ),
    choice_option("--graphs", "G", OneOf(*GRAPHS), "Record CUDA graphs: on or off."),
    choice_option("--layers", "L", OneOf(*LAYERS), "Decoder layers: auto, eager, traced or compiled."),
    choice_option(
        "--rounds", "R", OneOf(*ROUNDS), "Rounds: deferred, each launched before the last is read, or synchronous."
    ),
    click.option(
        "--bitwise",
        is_flag=True,
        default=DEFAULTS.bitwise,
        help="Logits the same to the bit whatever the batch, in any precision; slower.",
    ),
)
"""Options for the execution of forwards. They do not change the output."""

EXECUTOR = choice_option(
    "--executor",
    "E",
    StrategyType("executor", "auto"),
    "Executor: the process or processes that the models run in; workers,count=N: N of them; auto: {executor}.",
)

MEMORY = choice_option(
    "--memory",
    "BYTES",
    Bytes(),
    "The most bytes of weights, caches and all else, as 22GB: shorter drafts, then fewer rows, then no drafter keep to it.",
    shown="no bound",
)

SEED = whole("--seed", "Seed of every random choice.", DEFAULTS.seed, least=0, most=LARGEST_SEED)

PIPELINE = (*MODELS, *STRATEGIES, draft_length(DEFAULTS.draft_length), *PLACE, SEED, *EXECUTION, EXECUTOR, MEMORY)
"""Options for all arguments of `specframe.Pipeline`."""


def with_options(*groups: Iterable[Callable[..., Any]]) -> Callable[..., Any]:
    """Return a decorator that adds options to a command, in the given order."""

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
        type=File(),
        cls=Once,
        is_eager=True,
        expose_value=False,
        callback=read_config,
        help="Read options from a file: lines such as `batch-size = 4`, also in a section [COMMAND]; the command line wins.",
    )
    return with_options(PIPELINE, [config])(command)


def refuse_idle(ctx: click.Context, name: str, without: str, why: str) -> None:
    """Raise :class:`OptionError` if an option was typed without another option that it needs."""
    typed = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    if typed and ctx.params.get(without) is None:
        option, other = (f"--{one.replace('_', '-')}" for one in (name, without))
        raise OptionError(f"{option}: expected {other} with it: {why}")
