"""``specframe plugins``: list and show plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from specframe.cli import Extended
from specframe.cli.tables import show_table
from specframe.errors import PluginError, UnknownNameError
from specframe.plugins.entries import Entry
from specframe.plugins.registry import registry
from specframe.plugins.sources import Said
from specframe.plugins.traits import REQUIRED


@click.group(invoke_without_command=True, cls=Extended, subcommand_metavar="[COMMAND] [ARGS]...")
@click.pass_context
def plugins(ctx: click.Context) -> None:
    """List plugins, show one, see which combine, start a new one. Without a subcommand, list them."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@plugins.command("list")
def list_() -> None:
    """List everything that plugins offer, and the plugins that failed to load."""
    known = registry()
    rows = [(entry.kind, entry.name, lossless(entry), entry.distribution, summary(entry)) for entry in known]
    rows += [("(failed to load)", "", "", name, fault) for name, fault in sorted(known.failures.items())]
    show_table(("kind", "name", "lossless", "distribution", "summary"), rows)


@plugins.command()
@click.argument("name")
def show(name: str) -> None:
    """Show the plugins of one name: description, options and defaults."""
    known = registry()
    found = [entry for entry in known if entry.name == name]
    if not found:
        if excuse := known.excuse(name):
            raise PluginError(excuse)
        raise UnknownNameError("plugin", name, {entry.name for entry in known})
    click.echo("\n\n".join(map(description, found)))


def said_of(entry: Entry) -> Said | str:
    """Return what an entry says of itself, or the reason why that is not known."""
    try:
        return entry.said
    except PluginError as fault:
        return str(fault)


def lossless(entry: Entry) -> str:
    """Return "yes" or "no" if it is known of a strategy whether it is lossless, else an empty text."""
    found = said_of(entry)
    if isinstance(found, str) or entry.kind not in ("alignment", "acceptance rule") or found.offers is None:
        return ""
    return "yes" if "lossless" in found.offers else "no"


def summary(entry: Entry) -> str:
    """Return one line on what an entry does, or why it cannot be used."""
    found = said_of(entry)
    return f"cannot be used: {found}" if isinstance(found, str) else plain(found.summary)


def plain(text: str) -> str:
    """Return a docstring's text without markup."""
    return text.replace("``", "`")


def description(entry: Entry) -> str:
    """Return an entry's heading, docstring, traits and options. Its class is imported."""
    heading = f"{entry.kind} {entry.name}, of {entry.distribution}"
    try:
        traits = entry.traits
    except PluginError as fault:
        return f"{heading}\n\n    cannot be used: {fault}"
    lines = [f"{heading} ({traits.origin})"]
    lines += ["", *plain(traits.documentation).splitlines()] if traits.documentation else []
    told = {
        "lossless": lossless(entry),
        "needs": ", ".join(sorted(traits.able("needs"))),
        "offers": ", ".join(sorted(traits.able("offers") - {"lossless"})),
        "scheduler by default": traits.scheduler,
        "KV backend by default": traits.kv,
    }
    lines += ["", *(f"{trait}: {value}" for trait, value in told.items() if value)] if any(told.values()) else []
    if entry.kind != "command":
        lines += ["", *options(entry.name, traits.options)]
    return "\n".join(f"    {line}".rstrip() if place else line for place, line in enumerate(lines))


def options(name: str, known: Mapping[str, Any]) -> list[str]:
    """Return lines on the options of that name."""
    if not known:
        return ["options: none"]
    lines = [f"    {one}  {'required' if given is REQUIRED else f'default {given!r}'}" for one, given in known.items()]
    example = ",".join([name, *(f"{one}={'...' if given is REQUIRED else given}" for one, given in known.items())])
    return [f"options, as in {example}", *lines]
