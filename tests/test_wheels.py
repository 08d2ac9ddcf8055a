"""What an installed specframe can do, whether from a checkout or from wheels."""

import importlib.metadata
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from specframe import Pipeline
from specframe.plugins.registry import registry


def test_every_distribution_is_installed_and_loads():
    """The core finds the plugins of this repository through their entry points."""
    known = registry()
    names = ("std", "bitwise", "heads", "lab", "memory", "serve", "tiny")
    assert {f"specframe-{name}" for name in names} <= set(known.distributions)
    assert known.failures == {}
    assert {"tiny", "tiny-draft"} <= set(known.models)


def test_the_embedded_pair_decodes():
    """The packaged weights and tokenizer files decode text on every default."""
    (result,) = Pipeline(draft_length=3).generate(["import os"], max_new_tokens=8)
    assert result.finish_reason in ("length", "eos")
    assert 1 <= len(result.token_ids) <= 8
    assert result.text


def test_the_command_runs():
    """The console script completes a prompt and names the combination."""
    command = Path(sys.executable).parent / "specframe"
    done = subprocess.run([command, "run", "import os", "--max-new-tokens", "4"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "lossless" in done.stdout


def test_the_lab_has_its_pages(tmp_path):
    """The lab writes a page from the files that are packaged with it, and the templates of its other pages are there."""
    command, page = Path(sys.executable).parent / "specframe", tmp_path / "trace.html"
    line = [command, "trace", "import os", "--max-new-tokens", "2", "--align", "ragged", "--output", page]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    for package, names in (
        ("report", ["page.html", "page.css"]),
        ("reproduction", ["reproduction.html", "reproduction.md"]),
    ):
        assert all((files(f"specframe_lab.{package}") / name).is_file() for name in names)


def test_new_plugins_have_their_files():
    """The files of a new plugin are packaged, for every role."""
    from specframe_testing.scaffold import package

    for part in package.TEMPLATES:
        assert "class MyOwn" in package.files("my-own", part)[f"src/my_own/{part}.py"]


def test_typing_marker_is_packaged():
    """Type checkers of dependants see the annotations."""
    import specframe

    assert (Path(specframe.__file__).parent / "py.typed").exists()
    assert importlib.metadata.version("specframe") == specframe.__version__
