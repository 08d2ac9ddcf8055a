"""The pipeline of the drop-in, kept from one call for the next."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import PreTrainedModel

from specframe.errors import OptionError, literal
from specframe.model.twin import attention_of
from specframe.models.pairs import choose
from specframe.pipeline import Pipeline
from specframe.plugins.compose import compose
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry


def check(draft: Any, draft_length: Any, align: Any, accept: Any, kv: Any) -> None:
    """Raise :class:`SpecframeError` for wrong arguments of ``assisted``, before there is a target."""
    named = draft is None or isinstance(draft, str | os.PathLike | torch.nn.Module)
    if (isinstance(draft, str) and draft == "auto") or not (named or hasattr(draft, "propose")):
        raise OptionError(
            "draft: expected a loaded model, a directory or hub id of one, or a drafter by name or as an object, "
            f"got {literal(draft)}"
        )
    number = isinstance(draft_length, str | int) or draft_length is None
    if not number and not hasattr(draft_length, "budget"):
        raise OptionError(
            f"draft_length: expected a whole number of at least 1, a policy's name or object, or 'auto', "
            f"got {literal(draft_length)}"
        )
    _, drafter, _ = choose("target", draft)
    compose(registry(), Recipe(drafter=draft, align=align, accept=accept, kv=kv, draft_length=draft_length), drafter)


class CachedPipeline:
    """The pipeline of the latest call, kept for the next call on the same models.

    Only one pipeline is kept, so that models no longer in use are freed. A pipeline in use is not shared: a nested call, which a
    processor may make, gets a pipeline of its own.

    Args:
        make: makes a pipeline from a target, a draft and a draft length.
        caches: whether its caches are kept as well.
    """

    def __init__(self, make: Callable[[PreTrainedModel, Any, Any], Pipeline], caches: bool = False) -> None:
        self._make, self._caches = make, caches
        self._state: Any = None
        self._pipe: Pipeline | None = None

    @contextlib.contextmanager
    def lend(self, target: PreTrainedModel, draft: Any, draft_length: Any) -> Iterator[Pipeline]:
        """Yield a pipeline for these models in their present state; keep it unless the block fails."""
        state = (state_of(target), state_of(draft), draft_length)
        pipe = self._pipe if state == self._state else None
        self._state = self._pipe = None
        pipe = pipe or self._make(target, draft, draft_length)
        yield pipe
        if not self._caches:
            pipe.close()  # between calls of ``generate`` a model has no cache
        self._state, self._pipe = state, pipe

    def close(self) -> None:
        """Forget the pipeline that is kept, and release its caches."""
        pipe, self._pipe, self._state = self._pipe, None, None
        if pipe:
            pipe.close()


def state_of(given: Any) -> Any:
    """Return the state of a model that a pipeline depends on, to notice a change: device, dtype, attention and configuration.

    Anything else, such as a model's name, is returned unchanged.
    """
    if not isinstance(given, PreTrainedModel):
        return given
    config = given.config  # the vocabulary's size is in it
    return given, given.device, given.dtype, attention_of(config), config.to_dict()
