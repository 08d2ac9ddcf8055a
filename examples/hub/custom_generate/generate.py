"""transformers' ``generate`` with drafts, in batches of any size."""

from __future__ import annotations

from typing import Any

import specframe

OPTIONS = ("draft_length", "align", "accept", "kv", "keep_cache")


class Kept:
    """The decoding loop that was made for a model, kept for its next call. Copies of the model are without."""

    def __init__(self, asked: tuple[Any, dict[str, Any]]) -> None:
        drafter, options = self.asked = asked
        self.decode = specframe.assisted(drafter, **options)

    def __reduce__(self) -> tuple[type, tuple]:
        return type(None), ()


def generate(*inputs: Any, model: Any, drafter: Any = None, assistant_model: Any = None, **given: Any) -> Any:
    """Return what ``model.generate`` returns, decoded with drafts.

    Args:
        inputs, given: the arguments of ``generate``, and those of ``specframe.assisted`` that OPTIONS names.
        model: the model.
        drafter: a loaded draft model, a directory or hub id of one, or a drafter's name with options; by default "prompt-lookup".
        assistant_model: another name of ``drafter``, that of ``generate``.
    """
    if drafter is None:
        drafter = "prompt-lookup" if assistant_model is None else assistant_model
    asked = drafter, {name: given.pop(name) for name in OPTIONS if name in given}
    kept = vars(model).get("_specframe_kept")
    if kept is None or kept.asked != asked:
        made = Kept(asked)
        if kept is not None:
            kept.decode.close()
        kept = vars(model)["_specframe_kept"] = made
    return type(model).generate(model, *inputs, **{"custom_generate": kept.decode, **given})
