"""specframe where specframe-lab is not installed: it decodes, and the commands that are missing say what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from specframe.cli import cli
from specframe.plugins.registry import LIMIT_VARIABLE, registry

LAB = ("compare", "verify", "reproduce", "trace")

HIDE = """
import importlib.metadata, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("specframe_lab", "matplotlib", "markdown_it"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def without(found):
    return [one for one in found if one.metadata["Name"] != "specframe-lab"]

every = importlib.metadata.MetadataPathFinder.find_distributions.__func__
importlib.metadata.MetadataPathFinder.find_distributions = classmethod(lambda *given: without(every(*given)))
sys.meta_path.insert(0, Hidden())
"""
"""Makes an interpreter one in which neither the lab nor what only the lab needs is installed."""

COMMAND = """
from specframe.cli import main
sys.argv = ["specframe", *sys.argv[1:]]
main()
"""

DECODE = """
from specframe import Pipeline
from specframe.reference import reference_decode
from specframe_testing.fakes import fake_draft, fake_target
target, prompts = fake_target(), [[1, 2], [3, 4, 5]]
pipe = Pipeline(target=target, drafter=fake_draft(target), batch_size=2, draft_length=3, check=True)
own = [reference_decode(target, prompt, 6, {0}) for prompt in prompts]
print([result.token_ids for result in pipe.generate(prompts, max_new_tokens=6)] == own, all(own))
"""


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    """Plugins are discovered anew after every test."""
    yield
    registry.cache_clear()


def isolated(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter in which the lab is not installed."""
    command = [sys.executable, "-c", HIDE + code, *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_pipeline_decodes() -> None:
    """The core and the standard strategies give the reference decoder's tokens, with the checks of invariants too."""
    done = isolated(DECODE)
    assert (done.stdout, done.returncode) == ("True True\n", 0), done.stderr


@pytest.mark.slow
def test_the_command_line_decodes() -> None:
    """The command ``run`` completes a prompt and shows its figures."""
    done = isolated(COMMAND, "run", "import os", "--max-new-tokens", "3", "--verbose")
    assert done.returncode == 0, done.stderr
    assert "this combination is lossless" in done.stdout


def test_the_help_lists_all_commands() -> None:
    """The help lists the commands that are missing, each with the way to get it."""
    done = isolated(COMMAND, "--help")
    assert done.returncode == 0, done.stderr
    assert "\n  run  " in done.stdout
    for name in LAB:
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"  {name} ")]
        assert line.endswith(" (not installed: pip install specframe-lab)")


@pytest.mark.parametrize("name", LAB)
def test_a_missing_command_says_how_to_get_it(name: str, tmp_path: Path) -> None:
    """A command of the lab is one sentence and status 2, whatever is asked of it."""
    done = isolated(COMMAND, name, "--output", str(tmp_path / "out"), "import os")
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert done.stderr == (
        f"Error: command {name!r} is part of specframe-lab, which is not installed: pip install specframe-lab\n"
    )


def test_a_lab_that_is_left_out_is_not_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SPECFRAME_PLUGINS leaves the lab out, its commands say so."""
    monkeypatch.setenv(LIMIT_VARIABLE, "std")
    registry.cache_clear()
    done = CliRunner().invoke(cli, ["trace"], prog_name="specframe")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "Error: command 'trace' is part of specframe-lab, which SPECFRAME_PLUGINS leaves out\n"


def test_a_lab_that_fails_to_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the lab does not import, its commands say why, and the others are there."""
    monkeypatch.setitem(sys.modules, "specframe_lab", None)
    registry.cache_clear()
    done = CliRunner().invoke(cli, ["compare", "--dry-run"], prog_name="specframe")
    assert (done.exit_code, done.stdout) == (2, "")
    assert (
        "Error: command 'compare' is part of specframe-lab, which was skipped: plugin 'lab' (specframe_lab): "
        in done.stderr
    )
    assert CliRunner().invoke(cli, ["plugins", "list"], prog_name="specframe").exit_code == 0
