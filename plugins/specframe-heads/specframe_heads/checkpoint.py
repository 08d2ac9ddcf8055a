"""Checkpoints of heads as they are published: a configuration, and tensors in safetensors or pickle files.

Nothing here imports torch before tensors are read: a name on the command line is recognised without it.
"""

from __future__ import annotations

import functools
import json
import pickletools
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from specframe.errors import ModelError, sentence
from specframe.models.aliases import resolve
from specframe.models.local import CONFIG, on_disk

if TYPE_CHECKING:
    import torch

SAFE, PICKLED = ("*.safetensors",), ("*.bin", "*.pt", "*.pth")
INDEX = "model.safetensors.index.json"


@attrs.frozen(eq=False, slots=False)
class Checkpoint:
    """A folder with the configuration and the tensors of a head.

    Errors about it are :class:`specframe.errors.ModelError` with one sentence that begins with ``str(checkpoint)``.
    """

    name: str
    """The name by which the user gave it: an alias, a directory or a hub id."""
    folder: Path
    role: str = "drafter"
    """Whose checkpoint it is, for errors: "target" where the target's own has the head."""

    def __str__(self) -> str:
        return f"{self.role} {self.name!r}"

    @classmethod
    def open(cls, name: str, role: str = "drafter") -> Checkpoint:
        """Return the checkpoint of an alias, a directory or a hub id.

        A hub id that is in the hub's cache is read from there. One that is not is downloaded.

        Raises:
            ModelError: there is no such directory, it has no config.json, or the hub does not offer it.
        """
        location = resolve(name)
        folder = on_disk(location)
        if folder is None:
            folder = downloaded(name, location)
        if not (folder / CONFIG[0]).is_file():
            raise ModelError(f"drafter {name!r} is a directory without config.json: expected the checkpoint of a head")
        return cls(name, folder, role)

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """The configuration, as config.json has it."""
        try:
            config = json.loads((self.folder / CONFIG[0]).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"the config.json of {self} cannot be read: {sentence(error)}") from error
        if not isinstance(config, dict):
            raise ModelError(
                f"the config.json of {self}: expected an object of keys and values, got a {type(config).__name__}"
            )
        return config

    @functools.cached_property
    def files(self) -> tuple[Path, ...]:
        """The files with tensors: all safetensors files, or those of the index; without any, all pickle files."""
        found = sorted(path for pattern in SAFE for path in self.folder.glob(pattern))
        if (self.folder / INDEX).is_file():
            found = self._indexed()
        return tuple(found or sorted(path for pattern in PICKLED for path in self.folder.glob(pattern)))

    def _indexed(self) -> list[Path]:
        try:
            places = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
            return sorted({self.folder / str(file) for file in places.values()})
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"the {INDEX} of {self} cannot be read: {sentence(error)}") from error

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names of the tensors. Of a pickle file all its texts are taken, which are more; nothing in it is executed."""
        return frozenset(name for path in self.files for name in self._read(path, _names))

    def load(self, wanted: Callable[[str], bool] = lambda name: True, hollow: bool = False) -> dict[str, torch.Tensor]:
        """Return the tensors with wanted names, on the CPU, in their own precision.

        Args:
            wanted: whether a tensor is, by its name.
            hollow: whether floating point tensors are on the meta device; in a safetensors file, only its header is read for them.

        Raises:
            ModelError: there is no file with tensors, or one that is cut off, not what its name says, or has more than tensors.
        """
        if not self.files:
            raise ModelError(f"{self} has no tensors: expected a .safetensors or .bin file in {str(self.folder)!r}")
        found: dict[str, torch.Tensor] = {}
        for path in self.files:
            found |= self._read(path, lambda path: _tensors(path, wanted, hollow))
        return found

    def _read(self, path: Path, reader: Callable[[Path], Any]) -> Any:
        try:
            return [*reader(path)]
        except Exception as error:  # of a library that reads a file; its type depends on the fault
            raise ModelError(
                f"{path.name} of {self} cannot be read: expected a whole file of tensors, got {sentence(error)}"
            ) from error


def downloaded(name: str, location: str) -> Path:
    """Return the folder of a hub id's files after fetching them; raise :class:`ModelError` where that fails."""
    if location.startswith((".", "/", "~")) or location.count("/") != 1:
        raise ModelError(f"drafter {name!r} is not there: expected the directory or the hub id of a head's checkpoint")
    from huggingface_hub import snapshot_download  # imports an HTTP library

    try:
        return Path(snapshot_download(location, allow_patterns=[*CONFIG, *SAFE, *PICKLED, INDEX]))
    except Exception as error:  # the client's error types differ between its releases
        raise ModelError(
            f"drafter {name!r} is not on disk and cannot be had from the hub: {sentence(error)}; pass the directory of a local copy"
        ) from error


def _names(path: Path) -> Iterator[str]:
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            yield from file.keys()
        return
    with zipfile.ZipFile(path) as archive:
        listing = next(one for one in archive.namelist() if one.endswith("data.pkl"))
        yield from (text for _, text, _ in pickletools.genops(archive.read(listing)) if isinstance(text, str))


def _tensors(path: Path, wanted: Callable[[str], bool], hollow: bool) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            for name in filter(wanted, file.keys()):
                part = file.get_slice(name)
                shape = part.get_shape()
                if hollow and shape and (first := part[:0]).is_floating_point():  # of the type, and none of the numbers
                    yield name, torch.empty(shape, dtype=first.dtype, device="meta")
                else:
                    yield name, file.get_tensor(name)
        return
    # the loader refuses everything but tensors and plain containers
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    tensors = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else None
    if tensors is None or not all(isinstance(one, torch.Tensor) for one in tensors.values()):
        raise ValueError("a file with something else than named tensors")
    for name in filter(wanted, tensors):
        one = tensors[name]
        yield name, one.to("meta") if hollow and one.is_floating_point() else one


def nested(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under a key of a configuration; empty where there is none."""
    found = config.get(key)
    return found if isinstance(found, dict) else {}


def number(config: Mapping[str, Any], *keys: str) -> int | None:
    """Return the first whole number that a configuration has under one of these keys, or None if it has none."""
    found = (config[key] for key in keys if key in config)
    return next((one for one in found if isinstance(one, int) and not isinstance(one, bool)), None)
