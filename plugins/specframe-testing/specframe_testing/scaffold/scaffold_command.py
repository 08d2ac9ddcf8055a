"""The command ``specframe plugins new``."""

from __future__ import annotations

import shlex

import click

from specframe.cli.option_types import OneOf
from specframe_testing.scaffold import package
from specframe_testing.scaffold.templates import TEMPLATES

ROLES = [*TEMPLATES]


@click.command()
@click.argument("name")
@click.option(
    "--role",
    metavar="ROLE",
    type=OneOf(*TEMPLATES),
    default="drafter",
    show_default=True,
    help=f"Role of the strategy: {', '.join(ROLES[:-1])} or {ROLES[-1]}.",
)
def new(name: str, role: str) -> None:
    """Write a package folder NAME with a working strategy of a role, its hook and its tests."""
    folder = package.write(name, role)
    option = TEMPLATES[role].option
    installed = shlex.quote(f"{folder}[test]")  # brackets are a pattern to zsh
    steps = (f"pip install -e {installed}", f"pytest {folder}", f"specframe run {option} {name}")
    click.echo(f"wrote {folder}; next:\n" + "".join(f"\n    {step}" for step in steps))
