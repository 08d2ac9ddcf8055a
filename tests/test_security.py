"""SECURITY.md: its statements about code, in checkpoints and in the sources, hold."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import ROOT
from specframe_testing import zoo

from specframe import Pipeline
from specframe.errors import ModelError

NAMED = re.compile(r"trust_remote_code|shell|torch\.load|\b(eval|exec|compile)\(|os\.(system|popen)|marshal|pickle")
"""What a module has to name to make a call that SECURITY.md denies; to parse all modules takes a second."""
SOURCES = [*ROOT.glob("specframe/**/*.py"), *ROOT.glob("plugins/*/specframe_*/**/*.py")]
RUNNING = {"eval", "exec", "compile", "os.system", "os.popen", "marshal.loads"}
"""Calls that run a text as code."""
PICKLES = {
    "plugins/specframe-std/specframe_std/prompts/lazy_text.py",  # a temporary file of this process
    "plugins/specframe-std/specframe_std/processor_check.py",  # a copy of a caller's object
    "plugins/specframe-std/specframe_std/executors/workers/messages.py",
    "plugins/specframe-std/specframe_std/executors/workers/processes.py",
    "plugins/specframe-std/specframe_std/executors/workers/worker.py",
}
"""Modules that may read pickled objects: their own process, or one that they began, has written them."""


def calls(path: Path) -> Iterator[tuple[str, dict[str, ast.expr]]]:
    """Yield the calls in a file: the function as it is written, and its keyword arguments."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)) if NAMED.search(source) else ():
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {keyword.arg or "": keyword.value for keyword in node.keywords}


def faults(path: Path) -> list[str]:
    """Return the calls in a file that SECURITY.md denies."""
    name, found = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name, []
    for function, given in calls(path):
        said = {word: isinstance(value, ast.Constant) and value.value for word, value in given.items()}
        if said.get("trust_remote_code", False) is not False or "shell" in given:
            found.append(function)
        if function == "torch.load" and said.get("weights_only") is not True:
            found.append(function)
        if function in RUNNING:
            found.append(function)
        if function in ("pickle.load", "pickle.loads", "pickle.Unpickler") and name not in PICKLES:
            found.append(function)
    return found


def test_sources_run_no_code_of_files() -> None:
    """No module runs texts as code, trusts a checkpoint's code, or reads pickled objects of others than its own processes."""
    assert len(SOURCES) > 200
    assert {path.name: found for path in SOURCES if (found := faults(path))} == {}


class Harmful:
    """Makes a folder where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The folder of a small target."""
    zoo.save_pair(tmp_path)
    return tmp_path / "target"


@pytest.mark.wide
def test_pickled_weights_run_nothing(target: Path, tmp_path: Path) -> None:
    """A file of pickled weights that holds code is refused in one sentence, and the code does not run."""
    (target / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Harmful(tmp_path / "ran")}, target / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be read"):
        Pipeline(str(target), None)
    assert not (tmp_path / "ran").exists()


def test_code_in_a_checkpoint_does_not_run(target: Path, tmp_path: Path) -> None:
    """A checkpoint that brings its own model code is decoded without it, or refused: the code does not run."""
    config = json.loads((target / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (target / "config.json").write_text(json.dumps(config))
    (target / "own.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\nclass Own: pass\n")
    with pytest.raises(ModelError, match="cannot be read"):
        Pipeline(str(target), None)
    assert not (tmp_path / "ran").exists()
