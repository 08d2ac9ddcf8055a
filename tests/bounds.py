"""The lowest versions that the packages declare: ``python tests/bounds.py`` prints them as constraints for pip."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("data", "test")
"""Extras of the core whose bounds are tested too; tools for development have the versions of constraints.txt."""


def declared(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Yield every dependency of the core and of the plugins beside it, with the file that declares it."""
    for path in (root / "pyproject.toml", *sorted(root.glob("plugins/*/pyproject.toml"))):
        if path.parent.name == "specframe-ray":  # it has an environment of its own
            continue
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {})
        for dependency in (*project.get("dependencies", ()), *(one for name in EXTRAS for one in extras.get(name, ()))):
            yield path, dependency


def lowest(dependencies: Iterator[tuple[Path, str]]) -> dict[str, str]:
    """Return the lowest version of each package, the highest of them where several are declared; the project's own are left out.

    Raises:
        ValueError: a dependency has no lowest version.
    """
    found: dict[str, str] = {}
    for path, dependency in dependencies:
        name = re.match(r"[A-Za-z0-9._-]+", dependency)
        if name is None or name[0].startswith("specframe"):
            continue
        bound = re.search(r">=\s*([0-9][0-9.]*)", dependency)
        if bound is None:
            raise ValueError(f"{path}: expected a lowest version of {name[0]}, such as >=1.0, got {dependency!r}")
        found[name[0]] = max(found.get(name[0], "0"), bound[1], key=numbers)
    return found


def numbers(version: str) -> list[int]:
    """Return the numbers of a version, which versions are compared by."""
    return [int(part) for part in version.split(".")]


def main(arguments: Sequence[str]) -> None:
    """Print the constraints; arguments such as torch==2.13.0 take the place of a package's own."""
    other = dict(one.split("==") for one in arguments)
    for name, version in sorted(({**lowest(declared()), **other}).items()):
        print(f"{name}=={version}")


if __name__ == "__main__":
    main(sys.argv[1:])
