"""What the drop-in decodes with: a pipeline of the strategies it was made for."""

from __future__ import annotations

import os
from typing import Any

import torch

from specframe.compose import compose
from specframe.errors import OptionError
from specframe.pipeline import choose
from specframe.plugins import registry


def check(draft: Any, draft_length: Any, align: Any, accept: Any, kv: Any) -> None:
    """Raise :class:`SpecframeError` for what no pipeline can be made of, before there is a target."""
    named = draft is None or isinstance(draft, str | os.PathLike | torch.nn.Module)
    if not named and not hasattr(draft, "propose"):
        raise OptionError(
            f"draft: expected a loaded model, a directory or hub id of one, or a drafter by name or as an object, got {draft!r}"
        )
    number = isinstance(draft_length, str | int) or draft_length is None
    if not number and not hasattr(draft_length, "draft_length"):
        raise OptionError(
            f"draft_length: expected a whole number of at least 1, a policy's name or object, or 'auto', got {draft_length!r}"
        )
    _, drafter, _ = choose("target", draft)
    compose(
        registry(),
        drafter=drafter,
        verify="chain",
        accept=accept,
        align=align,
        schedule=None,
        kv=kv,
        draft_length=draft_length,
    )
