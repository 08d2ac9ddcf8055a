"""``specframe plugins matrix``: which strategies run with which."""

from __future__ import annotations

import click

from specframe.cli.plugins import lossless
from specframe.cli.tables import show_table
from specframe.errors import PluginError
from specframe.plugins.compose import VIEWS, reads
from specframe.plugins.entries import Entry
from specframe.plugins.registry import registry
from specframe.plugins.traits import Traits


@click.command()
def matrix() -> None:
    """Show which alignments and attention backends run on which KV backends, and what each alignment asks for by default."""
    backends = readable("KV backend", ("offers",))
    rows = []
    for entry, alignment in readable("alignment", ("needs", "kv", "scheduler")):
        cells = [fit(alignment, backend, one.name) for one, backend in backends]
        rows.append((entry.name, lossless(entry), str(alignment.scheduler), *cells))
    show_table(("alignment", "lossless", "scheduler", *(f"kv {one.name}" for one, _ in backends)), rows)
    click.echo("\nThe scheduler named, and the KV backend marked default, are used unless others are asked for.\n")
    reads = [
        (entry.name, *("yes" if reads_views(attention, backend) else "no" for _, backend in backends))
        for entry, attention in readable("attention backend", ("offers",))
    ]
    show_table(("attention backend", *(f"kv {one.name}" for one, _ in backends)), reads)


def reads_views(attention: Traits, backend: Traits) -> bool:
    """Return whether an attention backend reads what a KV backend hands out, as far as their classes say."""
    return reads(attention.able("offers"), backend.able("offers") & VIEWS or {"dense"})


def readable(kind: str, asked: tuple[str, ...]) -> list[tuple[Entry, Traits]]:
    """Return the entries of a kind whose classes have all traits ``asked``; name other entries on standard error."""
    found = []
    for entry in registry().of(kind):
        try:
            traits = entry.traits
        except PluginError as fault:
            click.echo(f"specframe: {entry} is left out: {fault}", err=True)
            continue
        if missing := [name for name in asked if getattr(traits, name) is None]:
            why = f"its class does not say its {' and its '.join(missing)}"
            click.echo(f"specframe: {entry} is left out: {why}", err=True)
        else:
            found.append((entry, traits))
    return found


def fit(alignment: Traits, backend: Traits, name: str) -> str:
    """Return "yes", "default", or the features that the backend lacks for the alignment."""
    if missing := sorted(alignment.able("needs") - backend.able("offers")):
        return f"no, lacks {' and '.join(missing)}"
    return "default" if name == alignment.kv else "yes"
