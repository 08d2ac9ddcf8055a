"""``specframe models``: names for models."""

from __future__ import annotations

import click

from specframe.cli import Extended
from specframe.cli.tables import show_table


@click.group(invoke_without_command=True, cls=Extended, subcommand_metavar="[COMMAND] [ARGS]...")
@click.pass_context
def models(ctx: click.Context) -> None:
    """List, add, remove or show names of models. Without a subcommand, list them."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@models.command("list")
def list_() -> None:
    """List every alias: its location, the target it drafts for, and whether it is on disk."""
    from specframe_std.model_names import known_aliases

    rows = [(row.alias, row.state, row.target or "", row.distribution, row.location) for row in known_aliases()]
    show_table(("alias", "state", "drafts for", "offered by", "location"), rows)


@models.command()
@click.argument("alias")
@click.argument("path")
def add(alias: str, path: str) -> None:
    """Name the model in directory PATH; the name then works for --target and --drafter."""
    from specframe.models.aliases import resolve
    from specframe_std.model_names import add_alias, offered_location

    add_alias(alias, path)
    hidden = offered_location(alias)
    back = f", in the place of {hidden} until `specframe models remove {alias}`" if hidden else ""
    click.echo(f"{alias} is {resolve(alias)}{back}")


@models.command()
@click.argument("alias")
def remove(alias: str) -> None:
    """Remove one of your own names; the model itself is not deleted."""
    from specframe_std.model_names import remove_alias

    click.echo(f"{alias} is no longer an alias of {remove_alias(alias)}")
