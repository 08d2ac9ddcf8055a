"""Files of a head's checkpoint: one or several, with an index, as safetensors or pickle, on disk or from the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file
from specframe_heads.checkpoint import CONFIG, INDEX, Checkpoint

from specframe.errors import ModelError

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
