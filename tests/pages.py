"""The pages of the documentation, and the code blocks in them."""

from __future__ import annotations

import re
from pathlib import Path

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


def put(block: str, folder: Path) -> bool:
    """Write a block that starts with a file's name into that file."""
    if (file := FILE.match(block)) is None:
        return False
    path = folder / file[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block, encoding="utf-8")
    return True
