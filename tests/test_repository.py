"""What the repository has beside its code: hooks before commits, forms of issues, and the changelog."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version
from pages import FORMS, ROOT, name

import specframe

HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))


def recipe(target: str) -> list[str]:
    """Return the commands of a target of the Makefile, with the folder of the environment's tools written out."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", text, flags=re.MULTILINE)
    assert found is not None
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found[1].splitlines()]


def test_commits_and_make_check_run_the_same_commands() -> None:
    """The hooks before a commit are the commands of ``make check`` in their order, on all files, and download nothing."""
    (own,) = HOOKS["repos"]
    assert own["repo"] == "local"
    assert [hook["entry"] for hook in own["hooks"]] == recipe("check")
    assert {(hook["language"], hook["pass_filenames"]) for hook in own["hooks"]} == {("system", False)}


def test_make_names_files_that_there_are() -> None:
    """Each file of tests that ``make kernels`` and ``make fuzz`` run is there."""
    commands = subprocess.run(
        ["make", "-n", "kernels", "fuzz"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    named = set(re.findall(r"\S+/test_\w+\.py", commands))
    assert named
    assert not [file for file in named if not (ROOT / file).is_file()]


@pytest.mark.wide
def test_hooks_are_valid() -> None:
    """pre-commit takes the file of hooks."""
    command = [sys.executable, "-m", "pre_commit", "validate-config", ".pre-commit-config.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.wide
@pytest.mark.parametrize("path", FORMS, ids=name)
def test_forms_are_as_github_reads_them(path: Path) -> None:
    """A form has a name, a description and text areas, each with an id of its own and a label."""
    form: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert all(isinstance(form[key], str) and form[key] for key in ("name", "description"))
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids)) > 0
    for field in form["body"]:
        assert field["type"] == "textarea"
        assert field["attributes"]["label"]
        assert set(field["attributes"]) <= {"label", "description", "placeholder", "render"}
        assert field.get("validations", {"required": True}) == {"required": True}


@pytest.mark.wide
def test_a_wrong_token_is_reported_with_both_lists() -> None:
    """The form for wrong tokens requires the command, the ids that came, those of the target alone, and the versions."""
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/tokens.yml").read_text(encoding="utf-8"))
    required = {field["id"] for field in form["body"] if field.get("validations")}
    assert required == {"command", "got", "wanted", "environment"}


HEADING = re.compile(r"^## (?:Unreleased \((\S+)\)|(\S+) \(\d{4}-\d\d-\d\d\))$", flags=re.MULTILINE)
FRAGMENTS = sorted((ROOT / "docs/changes").glob("+*.md"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that the changelog is made of, with one more change."""
    for file in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / file, tmp_path)
    shutil.copytree(ROOT / "docs/changes", tmp_path / "docs/changes")
    (tmp_path / "docs/changes/+round.mended.md").write_text("A round is round.\n")
    return tmp_path


def build(folder: Path, *how: str) -> subprocess.CompletedProcess[str]:
    """Build the section of version 9.9.9 in a folder."""
    command = [sys.executable, "-m", "towncrier", "build", "--version", "9.9.9", *how]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def versions(text: str) -> list[str]:
    """Return the versions of a changelog's sections, from the top."""
    return [first or second for first, second in HEADING.findall(text)]


@pytest.mark.wide
def test_sections_are_versions_in_order() -> None:
    """Every section is a version with its date, or the one that is not out; the latest comes first and none is there twice."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = versions(text)
    assert len(found) == text.count("\n## ")
    assert found == sorted(set(found), key=Version, reverse=True)
    assert found[0] == specframe.__version__


@pytest.mark.wide
def test_a_draft_shows_every_change(copy: Path) -> None:
    """A draft has the sentence of each file, under its kind, and writes nothing."""
    before = (copy / "CHANGELOG.md").read_text()
    drafted = build(copy, "--draft")
    assert drafted.returncode == 0, drafted.stderr
    mended = drafted.stdout.partition("### Mended\n")[2].partition("\n### ")[0]
    assert "- A round is round.\n" in mended
    shown = " ".join(drafted.stdout.split())
    assert [path.name for path in FRAGMENTS if " ".join(path.read_text(encoding="utf-8").split()) not in shown] == []
    assert (copy / "CHANGELOG.md").read_text() == before


@pytest.mark.wide
def test_a_version_takes_all_changes(copy: Path) -> None:
    """The section of a version goes to the top, and the files are gone."""
    before = versions((copy / "CHANGELOG.md").read_text())
    built = build(copy, "--yes")
    assert built.returncode == 0, built.stderr
    text = (copy / "CHANGELOG.md").read_text()
    assert versions(text) == ["9.9.9", *before]
    assert "- A round is round." in text.partition("## Unreleased")[0]
    assert [path.name for path in (copy / "docs/changes").iterdir()] == ["README.md"]


def test_a_file_of_another_kind_is_refused(copy: Path) -> None:
    """A file whose name says no kind of change is an error that names it."""
    (copy / "docs/changes/+round.better.md").write_text("It is better.\n")
    refused = build(copy, "--draft")
    assert refused.returncode != 0
    assert "+round.better.md" in refused.stderr


@pytest.mark.wide
def test_links_of_changes_resolve() -> None:
    """A change links to files from the top of the repository, where its section will be."""
    links = [link for path in FRAGMENTS for link in re.findall(r"\]\(([^)\s#]+)", path.read_text(encoding="utf-8"))]
    assert [link for link in links if not (ROOT / link).exists()] == []
