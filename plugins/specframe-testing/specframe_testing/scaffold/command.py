"""The command ``specframe plugins new``."""

from __future__ import annotations

import click

from specframe.cli.option_types import OneOf
from specframe_testing.scaffold import package
from specframe_testing.scaffold.templates import TEMPLATES


@click.command()
@click.argument("name")
@click.option(
    "--role",
    metavar="ROLE",
    type=OneOf(*TEMPLATES),
    default="drafter",
    show_default=True,
    help="Role of the strategy: drafter, verifier, rule, alignment, scheduler, kv or policy.",
)
def new(name: str, role: str) -> None:
    """Write a package folder NAME with a working strategy of a role, its hook and its tests."""
    folder = package.write(name, role)
    option = TEMPLATES[role].option
    steps = (f"pip install -e {folder}[test]", f"pytest {folder}", f"specframe run {option} {name}")
    click.echo(f"wrote {folder}; next:\n" + "".join(f"\n    {step}" for step in steps))
