"""Checkpoints: the files of a head, in whatever form, on disk or from the hub; a broken one is one sentence."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file
from specframe_heads.checkpoint import CONFIG, INDEX, Checkpoint
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
    told = r"^pytorch_model\.bin of drafter .* cannot be read: expected a whole file of tensors"
    with pytest.raises(ModelError, match=told):
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
def test_missing_formats_are_named(tmp_path: Path) -> None:
    """A folder without a configuration, and one without a head, are one sentence each."""
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


TENSORS = {"fc.weight": torch.arange(6.0).view(2, 3), "norm.weight": torch.ones(3, dtype=torch.bfloat16)}
FILES = {"fc.weight": "model-00001-of-00002.safetensors", "norm.weight": "model-00002-of-00002.safetensors"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in two files, of which an index tells, beside one that the index does not name."""
    (tmp_path / CONFIG[0]).write_text("{}")
    for name, file in FILES.items():
        save_file({name: TENSORS[name]}, tmp_path / file)
    save_file({"leftover": torch.zeros(1)}, tmp_path / "old.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": FILES}))
    return tmp_path


def equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Return whether these are the same tensors in the same precision."""
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], one) and found[name].dtype == one.dtype for name, one in expected.items()
    )


def test_an_index_names_the_files(folder: Path) -> None:
    """Names and tensors are those of the files in the index, and of no other."""
    checkpoint = Checkpoint.open(str(folder))
    assert [path.name for path in checkpoint.files] == sorted(FILES.values())
    assert checkpoint.names == set(TENSORS)
    assert equal(checkpoint.load(), TENSORS)
    assert equal(checkpoint.load(lambda name: name == "fc.weight"), {"fc.weight": TENSORS["fc.weight"]})


@pytest.mark.wide
@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": null}'])
def test_a_broken_index_is_told(folder: Path, index: str) -> None:
    """An index that is no index is one sentence with its name."""
    (folder / INDEX).write_text(index)
    with pytest.raises(ModelError, match=rf"^the {INDEX} of .* cannot be read: "):
        Checkpoint.open(str(folder)).load()


@pytest.mark.wide
@pytest.mark.parametrize("read", [lambda one: one.names, Checkpoint.load], ids=["names", "tensors"])
def test_a_file_that_the_index_names_and_that_is_missing_is_told(folder: Path, read: Any) -> None:
    """A shard that was not copied is named, whatever is read first."""
    (folder / FILES["norm.weight"]).unlink()
    with pytest.raises(ModelError, match=rf"^{FILES['norm.weight']} of .* cannot be read: expected a whole file"):
        read(Checkpoint.open(str(folder)))


@pytest.mark.wide
def test_pickle_files_are_read_where_there_are_no_others(tmp_path: Path) -> None:
    """Tensors of a pickle file have their names; other things with them are refused."""
    (tmp_path / CONFIG[0]).write_text("{}")
    checkpoint = Checkpoint.open(str(tmp_path))
    with pytest.raises(ModelError, match=r"has no tensors: expected a \.safetensors or \.bin file in "):
        checkpoint.load()
    torch.save({"state_dict": TENSORS}, tmp_path / "pytorch_model.bin")
    checkpoint = Checkpoint.open(str(tmp_path))
    assert checkpoint.names >= set(TENSORS)
    assert equal(checkpoint.load(), TENSORS)
    torch.save({**TENSORS, "epoch": 3}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin of .* got .*something else than named tensors"):
        Checkpoint.open(str(tmp_path)).load()


@pytest.mark.wide
def test_files_of_the_hub_are_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub id is fetched: configuration, tensors and index; where that fails, the error has the id and the reason."""
    asked: list[Any] = []

    def fetch(location: str, allow_patterns: list[str]) -> str:
        asked.append((location, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert equal(Checkpoint.open("org/head").load(), TENSORS)
    ((location, patterns),) = asked
    assert location == "org/head"
    assert {CONFIG[0], INDEX} <= set(patterns)

    def fail(*_: Any, **__: Any) -> str:
        raise OSError("no route to the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    told = (
        r"^drafter 'org/head' is not on disk and cannot be had from the hub: .*no route to the hub; pass the directory"
    )
    with pytest.raises(ModelError, match=told):
        Checkpoint.open("org/head")


@pytest.mark.wide
@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_what_is_no_hub_id_is_not_fetched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that is not there is no hub id."""
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("the hub was asked"))
    with pytest.raises(ModelError, match="is not there: expected the directory or the hub id of a head's checkpoint"):
        Checkpoint.open(name)
