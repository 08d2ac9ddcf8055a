"""``specframe heads``: training of heads, and a search for targets that draft for themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from specframe_std.command_options.options import whole

from specframe.cli.option_types import Device, File, ModelType, Number, OneOf, TextType

if TYPE_CHECKING:
    from rich.progress import Progress

    from specframe_heads.training.session import Figures

FOLDER = File("the name of a directory", "dir")
KINDS = ("clover2", "dflash", "eagle3", "medusa")
DEVICE = click.option(
    "--device", metavar="D", type=Device(), default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."
)


@click.group()
def heads() -> None:
    """Train heads, and search the sublayers that a target can spare while it drafts for itself."""


@heads.command()
@click.argument("kind", metavar="KIND", type=OneOf(*KINDS))
@click.option(
    "--target",
    metavar="T",
    type=ModelType(),
    required=True,
    help="Model that the head is for: an alias, a directory or a hub id.",
)
@click.option(
    "--data",
    metavar="FILE",
    type=File(),
    required=True,
    help="Prompts that the target continues, in any format of `specframe run`.",
)
@click.option("--out", metavar="DIR", type=FOLDER, required=True, help="Where the head is written.")
@click.option(
    "--held-out",
    metavar="FILE",
    type=File(),
    help="Prompts for measuring acceptance.  [default: every twentieth of the data]",
)
@click.option(
    "--continuations",
    metavar="DIR",
    type=FOLDER,
    help="Where the target's continuations are kept, for several heads of one target.  [default: OUT/training]",
)
@whole("--steps", "Updates.", 2000)
@whole("--step-tokens", "Tokens of an update, about.", 4096)
@whole("--places", "The longest draft that the head is trained for.", 4, most=16)
@whole("--vocabulary", "eagle3, medusa: only the N tokens that the target writes most often.", None)
@whole("--layers", "clover2, dflash, eagle3: transformer layers of the head.", None)
@click.option(
    "--init",
    metavar="DIR",
    type=FOLDER,
    help="Begin with the weights of a head that this command trained into DIR, of the same kind, target and sizes.",
)
@click.option(
    "--rate", metavar="X", type=Number(0, above=True), default=1.5e-3, show_default=True, help="Learning rate."
)
@click.option("--bf16", is_flag=True, help="Learn in mixed precision: bfloat16 where torch's autocast computes in it.")
@whole("--max-prompt-tokens", "Cut prompts to their first N tokens.", 1024)
@whole("--max-new-tokens", "Tokens that the target writes after each prompt.", 128)
@whole("--batch-size", "Prompts that the target continues together.", 32)
@whole("--seed", "Of the order of texts and of the first weights.", 0, least=0)
@DEVICE
def train(kind: str, target: str, data: str, held_out: str | None, **options: Any) -> None:
    """Train a head of a KIND (clover2, dflash, eagle3, medusa) on what its target writes.

    The target first continues all prompts, greedily; then the head is trained on these texts, with the losses that its authors
    published; then held-out prompts are decoded with it. Whatever is cut off goes on where it was when the command is given again.
    """
    from transformers.utils.logging import disable_progress_bar

    from specframe_heads.training.session import Options, Session

    disable_progress_bar()  # it would overwrite the command's own
    with bars() as progress:
        figures = Session(Options(kind=kind, target=target, **options), progress).run(data, held_out)
    show(figures)


@heads.command("search-skip")
@click.option(
    "--target",
    metavar="T",
    type=ModelType(),
    required=True,
    help="Model that drafts for itself: an alias, a directory or a hub id.",
)
@click.option(
    "--prompts",
    metavar="FILE",
    type=File(),
    required=True,
    help="Prompts that the target continues, in any format of `specframe run`; some dozens are enough.",
)
@click.option(
    "--skip",
    metavar="N",
    type=TextType(),
    default="0.4",
    show_default=True,
    help="Sublayers that are left out: a number of them, or a share of the attention and MLP sublayers of all layers.",
)
@whole("--rounds", "Sets of sublayers that are tried.", 200)
@whole("--max-prompt-tokens", "Cut prompts to their first N tokens.", 1024)
@whole("--max-new-tokens", "Tokens that the target writes after each prompt.", 64)
@whole("--batch-size", "Prompts that the target continues together.", 32)
@whole("--seed", "Of the search: the same seed finds the same sublayers.", 0, least=0)
@DEVICE
def search_skip(target: str, prompts: str, **options: Any) -> None:
    """Find sublayers that the drafter layer-skip leaves out, by how often the target foresees its own tokens without them."""
    from specframe_std.partial.sublayers import write_sublayers
    from transformers.utils.logging import disable_progress_bar

    from specframe_heads.skip_search import found_by

    disable_progress_bar()
    with bars() as progress:
        bar = progress.add_task("sets of sublayers", total=options["rounds"], note="")
        found = found_by(
            target,
            prompts,
            lambda done, rate: progress.update(bar, completed=done, note=f"match {rate:.3f}"),
            **options,
        )
    speed, length = found.speed
    click.echo(f"match rate: {found.match_rate:.3f}")
    click.echo(f"cost of a drafting forward: {found.cost:.3f} of a verifying one, by weights")
    click.echo(
        f"expected speed: {speed:.2f} times plain decoding's with --draft-length {length}, where forwards wait for weights"
    )
    click.echo(f"--drafter layer-skip,skip={write_sublayers(found.skip)}")


def bars() -> Progress:
    """Return progress bars on standard error, shown where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    note = TextColumn("{task.fields[note]}")
    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), note)
    return Progress(*parts, console=console, disable=not console.is_terminal)


def show(figures: Figures) -> None:
    """Print the figures of a finished training."""
    click.echo(f"head: {figures.folder}, {figures.parameters:,} trained parameters")
    click.echo(f"held-out texts: {figures.texts}, chains of {len(figures.agreement)}")
    click.echo(f"mean_acceptance_length: {figures.length:.3f}")
    click.echo("accepted at each place: " + " ".join(f"{one:.3f}" for one in figures.agreement))
