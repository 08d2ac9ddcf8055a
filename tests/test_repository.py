"""What the repository has beside its code: hooks before commits, and forms of issues and changes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import FORMS, ROOT, name

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
