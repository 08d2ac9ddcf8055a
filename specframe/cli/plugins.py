"""``specframe plugins``: what is installed, what fits what, and a start for a new one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import click

from specframe.cli.tables import show_table
from specframe.errors import PluginError, UnknownNameError
from specframe.plugins import Entry, registry


@click.group()
def plugins() -> None:
    """List plugins, show one, see which combine, start a new one."""


@plugins.command("list")
def list_() -> None:
    """List everything that plugins offer, and the plugins that failed to load."""
    known = registry()
    rows = [(e.kind, e.name, lossless(e), e.distribution, summary(e)) for e in known]
    rows += [("(failed to load)", "", "", name, fault) for name, fault in sorted(known.failures.items())]
    show_table(("kind", "name", "lossless", "distribution", "summary"), rows)


@plugins.command()
@click.argument("name")
def show(name: str) -> None:
    """Show everything of one name: what it does, its options and their defaults."""
    known = list(registry())
    found = [entry for entry in known if entry.name == name]
    if not found:
        raise UnknownNameError("plugin", name, {entry.name for entry in known})
    click.echo("\n\n".join(map(description, found)))


@plugins.command()
def matrix() -> None:
    """Show which alignments run on which KV backends, and what each alignment asks for unless told otherwise."""
    known = registry()
    backends = loaded("KV backend")
    rows = []
    for name, alignment in loaded("alignment").items():
        cells = [fit(alignment, backend, kv == alignment.kv) for kv, backend in backends.items()]
        rows.append((name, lossless(known.entry("alignment", name)), alignment.scheduler, *cells))
    show_table(("alignment", "lossless", "scheduler", *(f"kv {name}" for name in backends)), rows)
    click.echo("\nThe scheduler named, and the KV backend marked default, are used unless others are asked for.")


@plugins.command()
@click.argument("name")
@click.option(
    "--role",
    metavar="ROLE",
    default="drafter",
    show_default=True,
    help="What it is to offer: drafter, verifier, rule, alignment, scheduler, kv or policy.",
)
def new(name: str, role: str) -> None:
    """Write a package folder NAME with a working strategy of a role, its hook, its tests."""
    from specframe import scaffold

    folder = scaffold.write(name, role)
    option = scaffold.TEMPLATES[role].option
    steps = (f"pip install -e {folder}", f"pytest {folder}", f"specframe run {option} {name}")
    click.echo(f"wrote {folder}; next:\n" + "".join(f"\n    {step}" for step in steps))


def loaded(kind: str) -> dict[str, Any]:
    """Return the factories of a kind that import, by name."""
    found = {}
    for name, entry in sorted(registry().entries.get(kind, {}).items()):
        try:
            found[name] = entry.factory
        except PluginError as fault:
            click.echo(f"specframe: {fault}", err=True)
    return found


def fit(alignment: Any, backend: Any, default: bool) -> str:
    """Return "yes", "default", or what the backend lacks for the alignment."""
    if missing := sorted(alignment.requires - backend.provides):
        return f"no, lacks {' and '.join(missing)}"
    return "default" if default else "yes"


def lossless(entry: Entry) -> str:
    """Return "yes" or "no" where the factory says whether the output is the target's own."""
    try:
        says = getattr(entry.factory, "lossless", None)
    except PluginError:
        return ""
    return {True: "yes", False: "no"}.get(says, "") if isinstance(says, bool) else ""


def summary(entry: Entry) -> str:
    """Return one line on what an entry does, or why it cannot be used."""
    try:
        return documentation(entry.factory).partition("\n")[0]
    except PluginError as fault:
        return f"cannot be used: {fault}"


def documentation(factory: Any) -> str:
    """Return a command's help or a factory's docstring, as plain text."""
    text = factory.help if isinstance(factory, click.Command) else factory.__doc__
    return inspect.cleandoc(text or "").replace("``", "`")


def description(entry: Entry) -> str:
    """Return an entry's heading, docstring, traits and options."""
    heading = f"{entry.kind} {entry.name}, of {entry.distribution}"
    try:
        factory = entry.factory
    except PluginError as fault:
        return f"{heading}\n\n    cannot be used: {fault}"
    lines = [f"{heading} ({origin(factory)})"]
    lines += ["", *documentation(factory).splitlines()] if documentation(factory) else []
    traits = {
        "lossless": lossless(entry),
        "requires": listed(factory, "requires"),
        "provides": listed(factory, "provides"),
        "scheduler unless told otherwise": getattr(factory, "scheduler", ""),
        "KV backend unless told otherwise": getattr(factory, "kv", ""),
    }
    lines += ["", *(f"{trait}: {value}" for trait, value in traits.items() if value)] if any(traits.values()) else []
    if not isinstance(factory, click.Command):
        lines += ["", *options(entry.name, factory)]
    return "\n".join(f"    {line}".rstrip() if place else line for place, line in enumerate(lines))


def origin(factory: Any) -> str:
    """Return ``module:name`` of a factory."""
    where = factory.callback if isinstance(factory, click.Command) else factory
    return f"{getattr(where, '__module__', '?')}:{getattr(where, '__qualname__', '?')}"


def listed(factory: Any, trait: str) -> str:
    """Return a set of abilities as text."""
    return ", ".join(sorted(getattr(factory, trait, ())))


def options(name: str, factory: Callable[..., Any]) -> list[str]:
    """Return lines on the options a factory takes, from its signature."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [p for p in inspect.signature(factory).parameters.values() if p.kind not in variadic]
    if not parameters:
        return ["options: none"]
    lines = []
    for parameter in parameters:
        default = "required" if parameter.default is parameter.empty else f"default {parameter.default!r}"
        lines.append(f"    {parameter.name}  {default}")
    example = ",".join([name, *(f"{p.name}={'...' if p.default is p.empty else p.default}" for p in parameters)])
    return [f"options, as in {example}", *lines]
