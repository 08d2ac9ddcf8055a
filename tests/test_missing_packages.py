"""Names of specframe's other distributions: where one is not installed, the sentence says which to install."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke, refusal
from specframe_tiny import FOLDER

from specframe import assisted
from specframe.errors import PluginError
from specframe.pipeline import Pipeline
from specframe.plugins import missing_packages
from specframe.plugins.registry import LIMIT_VARIABLE, Registry, offer, registry

PLUGINS = Path(__file__).parents[1] / "plugins"


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    """Plugins are discovered anew after every test."""
    yield
    registry.cache_clear()


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have none of the further distributions loaded, as if only specframe and specframe-std were installed."""
    monkeypatch.setenv(LIMIT_VARIABLE, "std")
    monkeypatch.setattr(missing_packages, "is_installed", lambda distribution: False)
    registry.cache_clear()


def test_the_names_are_those_that_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has the names that specframe's distributions register, and no other."""
    monkeypatch.syspath_prepend(str(PLUGINS / "specframe-ray"))
    found = Registry()
    for name in ("bitwise", "heads", "lab", "memory", "ray", "serve", "std", "testing", "tiny"):
        offer(found, importlib.import_module(f"specframe_{name}"), f"specframe-{name}")
    for kind, names in missing_packages.NAMES.items():
        offers: Any = found.models if kind == "model" else found.entries[kind]
        every = {name: one.distribution for name, (one,) in offers.items()}
        # of the standard ones no name is listed: without them nothing is decoded
        strategies = kind not in (
            "command",
            "option",
        )
        every = {name: one for name, one in every.items() if not (strategies and one == "specframe-std")}
        assert names == every, kind


@pytest.mark.wide(but=["memory", "bitwise", "check"])
@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("drafter", "eagle,checkpoint=x", "drafter 'eagle' is part of specframe-heads"),
        ("target", "tiny", "model 'tiny' is part of specframe-tiny"),
        pytest.param("memory", "1GB", "option 'memory' is part of specframe-memory", id="memory"),
        pytest.param("bitwise", True, "option 'bitwise' is part of specframe-bitwise", id="bitwise"),
        pytest.param("check", True, "option 'check' is part of specframe-testing", id="check"),
    ],
)
def test_a_name_says_what_to_install(option: str, value: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name, or an option, that a distribution would offer is one sentence with the distribution."""
    alone(monkeypatch)
    part = told.rpartition(" ")[2]
    told = f"{told}, which is not installed: pip install {part}"
    given = {"target": str(FOLDER / "target"), "drafter": "none"} if value is True else {"target": "./nowhere"}
    given |= {option: value}
    words = (f"--{name}" if one is True else f"--{name}={one}" for name, one in given.items())
    assert refusal("run", *words, "x") == told
    with pytest.raises(PluginError, match=f"{told}$"):
        Pipeline(**given)


def test_what_the_standard_strategies_bring_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drop-in and names of models are parts of specframe-std, which the sentence says."""
    monkeypatch.setenv(LIMIT_VARIABLE, "tiny")
    monkeypatch.setattr(missing_packages, "is_installed", lambda distribution: False)
    registry.cache_clear()
    told = "'{}' is part of specframe-std, which is not installed: pip install specframe-std$"
    with pytest.raises(PluginError, match="^option " + told.format("assisted")):
        assisted("tiny-draft")
    assert "command " + told.format("models")[:-1] in invoke("models", "list").stderr


@pytest.mark.wide
def test_a_name_of_a_part_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says where SPECFRAME_PLUGINS leaves a distribution out, and where one does not load."""
    monkeypatch.setenv(LIMIT_VARIABLE, "std")
    registry.cache_clear()
    command = ("run", "--target", "./nowhere", "--drafter", "medusa", "x")
    assert refusal(*command) == "drafter 'medusa' is part of specframe-heads, which SPECFRAME_PLUGINS leaves out"
    monkeypatch.delenv(LIMIT_VARIABLE)
    monkeypatch.setitem(sys.modules, "specframe_heads", None)
    registry.cache_clear()
    told = "Error: drafter 'medusa' is part of specframe-heads, which was skipped: plugin 'heads'"
    assert told in invoke(*command).stderr


@pytest.mark.wide
@pytest.mark.parametrize("sign", missing_packages.SIGNS[:1])
def test_the_checkpoint_of_a_head_says_what_runs_it(sign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a head is not taken for a language model where nothing that is installed runs heads."""
    alone(monkeypatch)
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({sign: "eagle3", "architectures": ["Eagle3Speculator"]}))
    assert refusal("run", "--target", str(folder), "--drafter", str(folder), "x") == (
        f"the drafter for {str(folder)!r}, the checkpoint of a head, is part of specframe-heads, which is not installed: "
        "pip install specframe-heads"
    )


@pytest.mark.wide
def test_a_missing_command_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of the lab is one sentence and status 2, whatever is asked of it, and the help says how to get it."""
    alone(monkeypatch)
    monkeypatch.setattr("specframe.cli.is_installed", missing_packages.is_installed)
    told = "command 'trace' is part of specframe-lab, which is not installed: pip install specframe-lab"
    assert refusal("trace", "--nope") == told
    shown = invoke("--help").stdout
    assert "\n  run  " in shown
    for name in ("compare", "verify", "reproduce", "trace"):
        (line,) = [line for line in shown.splitlines() if line.startswith(f"  {name} ")]
        assert line.endswith(" (not installed: pip install specframe-lab)")
