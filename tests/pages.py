"""The pages of the documentation, and the code blocks in them."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from specframe.cli import cli

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "plugins/*/*.md", "plugins/*/*/*.md")
    for page in ROOT.glob(pattern)
    if ".egg-info" not in str(page)
)
FORMS = sorted(path for path in ROOT.glob(".github/ISSUE_TEMPLATE/*.yml") if path.stem != "config")
"""The forms of issues."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\S+\.(?:py|toml))\n")


def name(page: Path) -> str:
    """Return a page's path in the repository."""
    return str(page.relative_to(ROOT))


def command_of(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """Return the command that the words after ``specframe`` name, its context, and the words left."""
    command: click.Command = cli
    context, left = click.Context(cli, info_name="specframe"), [*words]
    while isinstance(command, click.Group) and left:
        found = command.get_command(context, left.pop(0))
        assert found is not None, words
        command, context = found, click.Context(found, parent=context)
    return command, context, left


@contextlib.contextmanager
def forgetting(folder: Path) -> Iterator[None]:
    """Forget the modules of a folder that are imported inside the block."""
    before = set(sys.modules)
    yield
    for module in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[module], "__file__", "")):
            del sys.modules[module]


def put(block: str, folder: Path) -> bool:
    """Write a block that starts with a file's name into that file."""
    if (file := FILE.match(block)) is None:
        return False
    path = folder / file[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block, encoding="utf-8")
    return True
