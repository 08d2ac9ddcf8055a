"""Import this first: it makes a checkout that is not installed usable, without a network and without writing into it.

specframe finds plugins among the entry points of installed distributions. For a part of the checkout that is not installed,
those its pyproject.toml declares are written to a temporary folder in the form an installation has; that folder and the
sources are put on the import path, of child processes too. What is installed is left alone.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = (
    "specframe-std",
    "specframe-bitwise",
    "specframe-heads",
    "specframe-lab",
    "specframe-memory",
    "specframe-testing",
    "specframe-tiny",
)
PARTS = (ROOT, *(ROOT / "plugins" / name for name in PLUGINS))


def installed(name: str) -> bool:
    """Return whether a distribution of that name is installed."""
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def declare(project: dict, folder: Path) -> None:
    """Write a project's name, version and entry points to a folder as an installation would."""
    name = project["name"].replace("-", "_")
    info = folder / f"{name}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
    )
    lines = []
    for group, points in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")


def prepare() -> None:
    """Put every part that is not installed on the import path, with its entry points."""
    projects = [
        (part, tomllib.loads((part / "pyproject.toml").read_text(encoding="utf-8"))["project"]) for part in PARTS
    ]
    missing = [(part, project) for part, project in projects if not installed(project["name"])]
    if not missing:
        return
    folder = Path(tempfile.mkdtemp(prefix="specframe-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for _, project in missing:
        declare(project, folder)
    added = [str(folder), *(str(part) for part, _ in missing)]
    sys.path[:0] = added
    os.environ["PYTHONPATH"] = os.pathsep.join([*added, *filter(None, [os.environ.get("PYTHONPATH")])])


prepare()
