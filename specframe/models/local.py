"""Look-up of model files on disk."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specframe.errors import ModelError, literal

CONFIG, WEIGHTS = ("config.json",), ("*.safetensors", "*.bin")
GENERATION = "generation_config.json"
VOCABULARIES = ("tokenizer.json", "tekken.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")


def on_disk(location: str) -> Path | None:
    """Return a directory, or the folder of the hub's cache that holds a model's config.json."""
    if os.path.isdir(location):
        return Path(location)
    from huggingface_hub import try_to_load_from_cache  # imports an HTTP library, too slow for a command's --help
    from huggingface_hub.errors import HFValidationError

    with contextlib.suppress(HFValidationError):
        config = try_to_load_from_cache(location, CONFIG[0])
        return Path(config).parent if isinstance(config, str) else None
    return None


def holds(folder: Path | None, files: tuple[str, ...]) -> bool:
    """Return whether a folder has a file of any of these names or patterns."""
    if folder is None or not os.path.isdir(folder):  # pathlib raises an error for a name that is too long
        return False
    return any(path.is_file() for pattern in files for path in folder.glob(pattern))


def configuration(location: str) -> Mapping[str, Any]:
    """Return what a model's config.json has; without a file on disk that can be read, nothing."""
    folder = on_disk(location)
    try:
        found = json.loads((folder / CONFIG[0]).read_text(encoding="utf-8")) if folder else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def broken(folder: Path | None, files: str = "*.json") -> str | None:
    """Return the sentence about the first JSON file in a folder that holds no JSON object, or None if there is no such file."""
    for path in sorted(folder.glob(files)) if folder else ():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except OSError:
            continue
        except ValueError as error:
            return f"{path.name} is {'empty' if not path.stat().st_size else f'not JSON ({error})'}: expected a JSON object"
        if path.name == CONFIG[0] and not isinstance(found, dict):
            return f"{path.name} holds {literal(found)}: expected a JSON object"
    return None


def require_model_folder(called: str, location: str) -> None:
    """Raise :class:`ModelError` for a file, or for a folder without a model; other names may be on the hub."""
    if os.path.isfile(location):
        raise ModelError(f"{called} is a file: expected the directory of a saved model")
    if os.path.isdir(location) and not holds(Path(location), CONFIG):
        raise ModelError(f"{called} is a directory without config.json: expected the directory of a saved model")
