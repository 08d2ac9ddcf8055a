"""The pipeline of the drop-in, kept from one call for the next."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import torch
from transformers import PreTrainedModel

from specframe.errors import OptionError, UnknownNameError, literal
from specframe.model.twin import attention_of
from specframe.models.pairs import choose
from specframe.pipeline import Pipeline
from specframe.plugins.compose import Composition, compose
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry

OF_THE_CALL = frozenset(
    {"target", "drafter", "batch_size", "device", "dtype", "seed", "tokenizer", "generation_config"}
)
"""Options of a pipeline that the model, or the call of ``generate``, decides."""


def check(draft: Any, draft_length: Any, how: Mapping[str, Any]) -> Composition:
    """Return the strategies that arguments of ``assisted`` name; raise :class:`SpecframeError` for wrong ones, before there is a
    target."""
    known = {field.name for field in attrs.fields(Recipe)} - OF_THE_CALL
    for name in how:
        if name in OF_THE_CALL:
            raise OptionError(f"{name}: expected none, since the call of generate decides it")
        if name not in known:
            raise UnknownNameError("option", name, known)
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
    recipe = Recipe(drafter=draft, draft_length=draft_length, **how).checked()
    return compose(registry(), recipe, drafter)


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
