"""The options of commands that model the speed of a pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from specframe.cli.option_types import OneOf, TextType, WholeNumber
from specframe.cli.options import DTYPES, MODELS
from specframe_lab.commands.lab_option_types import ListOf

NUMBERS = ListOf(WholeNumber(1))


def modelled(batch_sizes: str, draft_lengths: str) -> list[Callable[..., Any]]:
    """Return the options; the arguments are the defaults of two of them."""
    return [
        *MODELS,
        click.option(
            "--batch-size",
            metavar="N,...",
            type=NUMBERS,
            default=batch_sizes,
            show_default=True,
            help="Rows decoded together.",
        ),
        click.option(
            "--draft-length",
            metavar="K,...",
            type=NUMBERS,
            default=draft_lengths,
            show_default=True,
            help="Tokens drafted per round.",
        ),
        click.option(
            "--dtype",
            metavar="T",
            type=OneOf(*DTYPES),
            default="auto",
            show_default=True,
            help="Precision; auto: that of the files.",
        ),
        click.option(
            "--device-profile",
            metavar="P",
            type=TextType(),
            default="h100",
            show_default=True,
            help="a100, b200, h100, h200, or a JSON file with flops, bandwidth and layer_overhead, as `specframe predict "
            "--measure` writes.",
        ),
        click.option(
            "--acceptance",
            metavar="X|FILE",
            type=TextType(),
            help="Chance that a draft token is accepted, or figures to take it from: a report of `specframe run`, or a "
            "results.jsonl of `specframe compare`.  [default: all are accepted, which is the most there can be]",
        ),
    ]
