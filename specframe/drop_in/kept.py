"""What the drop-in decodes with: a pipeline, kept from one call for the next."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import PreTrainedModel

from specframe.errors import OptionError, shown
from specframe.forward.ongoing import own
from specframe.models.pairs import choose
from specframe.pipeline import Pipeline
from specframe.plugins.compose import compose
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry


def check(draft: Any, draft_length: Any, align: Any, accept: Any, kv: Any) -> None:
    """Raise :class:`SpecframeError` for what no pipeline can be made of, before there is a target."""
    named = draft is None or isinstance(draft, str | os.PathLike | torch.nn.Module)
    if (isinstance(draft, str) and draft == "auto") or not (named or hasattr(draft, "propose")):
        raise OptionError(
            "draft: expected a loaded model, a directory or hub id of one, or a drafter by name or as an object, "
            f"got {shown(draft)}"
        )
    number = isinstance(draft_length, str | int) or draft_length is None
    if not number and not hasattr(draft_length, "draft_length"):
        raise OptionError(
            f"draft_length: expected a whole number of at least 1, a policy's name or object, or 'auto', got {shown(draft_length)}"
        )
    _, drafter, _ = choose("target", draft)
    compose(registry(), Recipe(align=align, accept=accept, kv=kv, draft_length=draft_length), drafter)


class Kept:
    """The pipeline of the latest call, for the next one on the same models.

    It is one, so that a model which is no longer decoded with is let go of. While it is lent it is nobody else's: a call from
    within a call, as a processor may make one, has a pipeline of its own.

    Args:
        make: (target, draft, draft length) -> a pipeline.
    """

    def __init__(self, make: Callable[[PreTrainedModel, Any, Any], Pipeline]) -> None:
        self._make = make
        self._state: Any = None
        self._pipe: Pipeline | None = None

    @contextlib.contextmanager
    def lend(self, target: PreTrainedModel, draft: Any, draft_length: Any) -> Iterator[Pipeline]:
        """Yield a pipeline on these models as they are now; it is kept unless the block fails."""
        state = (state_of(target), state_of(draft), draft_length)
        pipe = self._pipe if state == self._state else None
        self._state = self._pipe = None
        pipe = pipe or self._make(target, draft, draft_length)
        yield pipe
        self._state, self._pipe = state, pipe


def state_of(given: Any) -> Any:
    """Return what a pipeline takes from a model when it is made, so that a change of it tells: its place, precision and sizes.

    Anything else, such as a model's name, is returned as it is.
    """
    if not isinstance(given, PreTrainedModel):
        return given
    config = given.config  # the vocabulary's size is in it
    return given, given.device, given.dtype, own(config, "_attn_implementation"), config.to_dict()
