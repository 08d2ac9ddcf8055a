"""``specframe predict``: the speed of a pair on a device, by the shapes of its models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs
import click
from specframe_std.command_options.options import choice_option, names, whole, with_options

from specframe.cli.option_types import Device, File
from specframe.cli.tables import per_second, show_table
from specframe_lab.commands.modelled_options import modelled

if TYPE_CHECKING:
    from specframe_lab.prediction.predict import Prediction


@click.command()
@with_options(modelled("1,8,32", "1,2,3,5,8"))
@whole("--context", "Tokens of each row in the cache.", 512)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each prediction.")
@click.option(
    *names("--measure"),
    metavar="FILE",
    type=File(),
    help="Write the profile of --device to a file, measured with --dtype, by default float32; predict nothing.",
)
@choice_option("--device", "D", Device(), "What --measure measures: cpu, cuda or cuda:N.")
def predict(
    target: str | None,
    drafter: str,
    batch_size: list[int],
    draft_length: list[int],
    context: int,
    dtype: str,
    device_profile: str,
    acceptance: str | None,
    as_json: bool,
    measure: str | None,
    device: str,
) -> None:
    """Predict the speed of a pair on a device, by what its forwards read and compute.

    No weights are loaded. A forward takes as long as its reads or its operations, whichever are longer, and each layer an
    overhead. The break-even length is the acceptance length, the bonus token included, from which drafting pays.
    """
    if measure is not None:
        write_measured(measure, device, dtype)
        return
    from specframe_lab.prediction.predict import predictor, read_acceptance
    from specframe_lab.prediction.profiles import assumed

    rate = None if acceptance is None else read_acceptance(acceptance)
    predict_of = predictor(target, drafter, dtype, device_profile, rate, context)
    found = [*predict_of(batch_sizes=batch_size, draft_lengths=draft_length)]
    if as_json:
        for one in found:
            click.echo(json.dumps(attrs.asdict(one) | {"device_profile": device_profile}))
    else:
        click.echo(assumed(device_profile), err=True)
        show(found, rate)


def write_measured(file: str, device: str, dtype: str) -> None:
    """Write the profile of a device."""
    import torch
    from specframe_std.output_file import Output

    from specframe.models.loading import pick_device
    from specframe_lab.prediction.pair import precision_of
    from specframe_lab.prediction.profiles import measured, write_profile

    precision = precision_of(dtype) or torch.float32
    Output(file).replace(write_profile(measured(pick_device(device), precision)))


def show(found: list[Prediction], rate: float | None) -> None:
    """Print predictions as a table."""
    if rate is None:
        click.echo("every draft token is taken to be accepted: speeds are the most there can be", err=True)
    else:
        click.echo(f"chance that a draft token is accepted: {rate:.3f}", err=True)
    columns = [
        *("batch size", "draft length", "round (ms)", "break-even length"),
        *("acceptance length", "tokens/s", "speed"),
    ]
    rows = [
        [
            str(one.batch_size),
            str(one.draft_length),
            f"{one.round_seconds * 1000:.2f}",
            f"{one.break_even_length:.2f}",
            f"{one.acceptance_length:.2f}",
            per_second(one.tokens_per_second),
            f"{one.speed:.2f}",
        ]
        for one in found
    ]
    show_table(columns, rows, numbers=True)
