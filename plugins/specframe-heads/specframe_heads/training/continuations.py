"""The texts that heads are trained on: prompts, each with the target's own continuation.

A head has to foresee what its target writes, not what people write. Texts are kept in a folder in parts, so that decoding goes on
where it was cut off, and so that several heads of one target are trained on the same texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import torch
from safetensors.torch import load_file, save_file

from specframe import Pipeline
from specframe.errors import OptionError

PART = 256
"""Prompts of a part: at most these are decoded again after an interruption."""


@attrs.frozen
class ContinuationText:
    """Token ids, of which the first ``prompt`` were given and the others are the target's."""

    ids: list[int]
    prompt: int


def texts(
    folder: Path,
    pipe: Pipeline,
    prompts: Sequence[list[int]],
    new: int,
    done: Callable[[int], None] = lambda count: None,
) -> list[ContinuationText]:
    """Return every prompt with its continuation of up to ``new`` tokens; decode those that are not in the folder yet.

    Args:
        folder: where they are kept.
        pipe: decodes; its target is the model that the head is for.
        prompts: token ids.
        new: tokens of a continuation.
        done: called with the number of prompts that have a continuation.

    Raises:
        OptionError: the folder holds continuations of other prompts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder, {"prompts": digest(prompts), "new": new})
    found: list[ContinuationText] = []
    for part, start in enumerate(range(0, len(prompts), PART)):
        file = folder / f"part-{part:05}.safetensors"
        if not file.exists():
            _write(file, continued(pipe, prompts[start : start + PART], new))
        found += _read(file)
        done(len(found))
    return found


def digest(prompts: Sequence[list[int]]) -> str:
    """Return a hash of prompts."""
    return hashlib.sha256(json.dumps([[*prompt] for prompt in prompts]).encode()).hexdigest()


def _claim(folder: Path, made_of: dict[str, object]) -> None:
    note = folder / "texts.json"
    if note.exists() and json.loads(note.read_text()) != made_of:
        raise OptionError(
            f"{folder} holds continuations of other prompts, or of another length: name another folder, or empty it"
        )
    note.write_text(json.dumps(made_of))


def continued(pipe: Pipeline, prompts: Sequence[list[int]], new: int) -> Iterator[ContinuationText]:
    """Yield every prompt that can be decoded, with its continuation of up to ``new`` tokens."""
    for prompt, result in zip(prompts, pipe.generate(list(prompts), new), strict=True):
        if result.finish_reason != "error":
            yield ContinuationText([*prompt, *result.token_ids], len(prompt))


def _write(file: Path, made: Iterator[ContinuationText]) -> None:
    rows = list(made)
    tensors = {
        "ids": torch.tensor([token for row in rows for token in row.ids], dtype=torch.int32),
        "lengths": torch.tensor([len(row.ids) for row in rows], dtype=torch.int32),
        "prompts": torch.tensor([row.prompt for row in rows], dtype=torch.int32),
    }
    save_file(tensors, partial := file.with_suffix(".partial"))
    partial.replace(file)


def _read(file: Path) -> list[ContinuationText]:
    tensors = load_file(file)
    pieces = tensors["ids"].split(tensors["lengths"].tolist())
    return [
        ContinuationText(ids.tolist(), prompt) for ids, prompt in zip(pieces, tensors["prompts"].tolist(), strict=True)
    ]
