"""Checkpoints: every format is recognised from its files alone, and a broken file is one sentence."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.formats.recognised import format_of
from specframe_testing import zoo
from specframe_testing.heads import checkpoints

from specframe.errors import ModelError, OptionError, PluginError
from specframe.models.pairs import choose
from specframe.plugins.entries import Entry
from specframe.plugins.registry import parse_specification, registry


@pytest.mark.wide(but=["a, b"])
@pytest.mark.parametrize("name", ["a, b", 'a "b"', 'a, "b",c=1'])
def test_a_folder_with_commas_is_a_drafter(name: str, tmp_path: Path) -> None:
    """The path of a head may have commas and quotation marks, with options behind it and without."""
    folder = checkpoints.eagle3(tmp_path / name, zoo.build("qwen3"))
    for options in ("", ",tree=dynamic,nodes=8"):
        drafter = choose("tiny", f"{folder}{options}")[1]
        assert parse_specification(drafter)[1]["checkpoint"] == str(folder)
        assert registry().make("drafter", drafter).trees.chain == (not options)
    zoo.build("llama").save_pretrained(tmp_path / "a,b")
    assert choose("tiny", f"{tmp_path}/a,b,tree=static") == ("tiny", "model,tree=static", f"{tmp_path}/a,b")


@pytest.mark.wide
def test_a_quotation_mark_without_a_partner_is_refused() -> None:
    """A specification whose quotation marks do not fit is one sentence."""
    with pytest.raises(OptionError, match=r"^expected a part with a comma in double quotes, as in "):
        parse_specification('eagle,"checkpoint=a,b')


class Evil:
    """An object whose unpickling runs code."""

    def __reduce__(self):
        return exec, ("raise SystemExit('it ran')",)


@pytest.mark.wide
def test_pickles_are_not_executed(tmp_path: Path) -> None:
    """A pickle file with more than tensors is refused in one sentence, and nothing in it runs."""
    folder = checkpoints.eagle1(tmp_path, zoo.build("qwen3"), pickled=True)
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    torch.save({**weights, "evil": Evil()}, folder / "pytorch_model.bin", pickle_module=pickle)
    with pytest.raises(
        ModelError, match=r"^pytorch_model\.bin of drafter .* cannot be read: expected a whole file of tensors"
    ):
        Checkpoint.open(str(folder)).load()


@pytest.mark.wide
@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_broken_configuration_is_named(text: str, tmp_path: Path) -> None:
    """A config.json that is no JSON object is one sentence."""
    folder = checkpoints.eagle3(tmp_path, zoo.build("qwen3"))
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"^the config\.json of drafter "):
        format_of(Checkpoint.open(str(folder)))


@pytest.mark.wide
def test_missing_folders_and_formats_are_named(tmp_path: Path) -> None:
    """A folder that is not there, one without a configuration, and one without a head are one sentence each."""
    with pytest.raises(ModelError, match="is not there: expected the directory or the hub id"):
        Checkpoint.open(str(tmp_path / "none"))
    with pytest.raises(ModelError, match=r"without config\.json"):
        Checkpoint.open(str(tmp_path))
    zoo.build("qwen3").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="is no head of a known format: expected one of speculators eagle3"):
        format_of(Checkpoint.open(str(tmp_path)))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("made", "says"),
    [
        (
            lambda location: 1 / 0,
            r"^checkpoint 'mine' of somebody raised ZeroDivisionError for '.*': division by zero$",
        ),
        (lambda location: 7, r"^checkpoint 'mine' of somebody: expected a drafter as name,key=value or None, got 7$"),
    ],
)
def test_faults_of_other_plugins_are_named(made, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that raises for a checkpoint, or returns no drafter's name, is named in one sentence."""
    entry = Entry("checkpoint", "mine", made, "somebody")
    monkeypatch.setitem(registry().entries["checkpoint"], "mine", [entry])
    zoo.build("qwen3").save_pretrained(tmp_path)
    with pytest.raises(PluginError, match=says):
        choose("tiny", str(tmp_path))


@pytest.mark.wide
@pytest.mark.parametrize("name", ["eagle", "medusa", "dflash", "pard"])
def test_a_drafter_without_its_checkpoint_is_refused(name: str) -> None:
    """A drafter that is asked for by name alone says which option it lacks."""
    with pytest.raises(OptionError, match=f"^drafter '{name}': expected '{name},checkpoint=...', got no checkpoint$"):
        registry().make("drafter", name)
