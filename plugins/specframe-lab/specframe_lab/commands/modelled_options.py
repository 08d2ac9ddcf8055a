"""The options of commands that model the speed of a pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from specframe_std.command_options.options import DTYPES, MODELS, choice_option

from specframe.cli.option_types import OneOf, TextType, WholeNumber
from specframe_lab.commands.lab_option_types import ListOf

NUMBERS = ListOf(WholeNumber(1))


def modelled(batch_sizes: str, draft_lengths: str) -> list[Callable[..., Any]]:
    """Return the options; the arguments are the defaults of two of them."""
    return [
        *MODELS,
        choice_option("--batch-size", "N,...", NUMBERS, "Rows decoded together.", batch_sizes),
        choice_option("--draft-length", "K,...", NUMBERS, "Tokens drafted per round.", draft_lengths),
        choice_option("--dtype", "T", OneOf(*DTYPES), "Precision; auto: that of the files."),
        choice_option(
            "--device-profile",
            "P",
            TextType(),
            "a100, b200, h100, h200, or a JSON file with flops, bandwidth and layer_overhead, as `specframe predict --measure` "
            "writes.",
            "h100",
        ),
        click.option(
            "--acceptance",
            metavar="X|FILE",
            type=TextType(),
            help="Chance that a draft token is accepted, or figures to take it from: a report of `specframe run`, or a "
            "results.jsonl of `specframe compare`.  [default: all are accepted, which is the most there can be]",
        ),
    ]
