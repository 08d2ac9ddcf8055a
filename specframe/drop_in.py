"""Batched speculative decoding inside transformers' own ``generate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from specframe.plugins.recipe import DEFAULTS
from specframe.plugins.registry import registry

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
    from transformers.generation.streamers import BaseStreamer
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    from specframe.observe.counts import RunReport


class Assisted(Protocol):
    """The function that :func:`assisted` returns."""

    report: RunReport | None
    """The figures of the latest call, such as the tokens accepted per round, or None if nothing was drafted in it."""

    def __call__(self, *given: Any, **asked: Any) -> torch.Tensor | GenerateDecoderOnlyOutput:
        """Decode a call of ``generate``, which calls this."""

    def close(self) -> None:
        """Release the models and caches of the latest call, which are kept for the next one; it may be used further."""


def assisted(
    draft: Any,
    draft_length: Any = DEFAULTS.draft_length,
    *,
    align: Any = DEFAULTS.align,
    accept: Any = DEFAULTS.accept,
    kv: Any = DEFAULTS.kv,
    streamer: BaseStreamer | list[BaseStreamer] | None = None,
    keep_cache: bool = False,
    **options: Any,
) -> Assisted:
    """Return a function for ``model.generate(**batch, custom_generate=...)``: assisted generation for batches of any size.

    Greedy output equals the output of ``generate`` without an assistant, token for token. Sampled output has the same distribution;
    its random numbers follow ``torch.manual_seed``. Rows that have ended are padded on the right, as in ``generate``, with scores
    and logits of 0. A call that cannot be decoded with drafts is decoded by transformers' own loop, and a
    :class:`specframe.errors.SpecframeWarning` gives the reason. Calls from several threads run one after the other. The models of
    the latest call are kept for the next one until the function's ``close`` is called.

    Args:
        draft: a loaded draft model, a directory or hub id of one, or a drafter's name with options.
        draft_length: tokens drafted per round, a draft-length policy's name or "auto", as :class:`specframe.Pipeline` takes it.
        align, accept, kv: strategies, as :class:`specframe.Pipeline` takes them.
        streamer: a streamer for one row, or a list with one for each row. It gets the prompt's ids, then the ids of every round.
            A streamer given to ``generate`` itself gets steps instead: one token of every row.
        keep_cache: keep the caches for the next call, and what is recorded over them as CUDA graphs, instead of giving their memory
            back at the end of each.
        options: others of :class:`specframe.Pipeline`, such as ``bitwise`` or ``layers``. Those that a call decides are refused,
            such as the seed.

    Raises:
        SpecframeError: at once, for a draft, draft length or strategy that does not exist or does not fit; at the call, before any
            work, for an option of ``generate`` that is not supported; the error names the option.
    """
    make = registry().entry("option", "assisted").factory
    return make(
        draft, draft_length, align=align, accept=accept, kv=kv, streamer=streamer, keep_cache=keep_cache, **options
    )


class Accelerated(Protocol):
    """The handle that :func:`accelerate` returns. At the end of a ``with`` block it is removed."""

    report: RunReport | None
    """The figures of the latest call, such as the tokens accepted per round, or None if nothing was drafted in it."""

    def remove(self) -> None:
        """Give the model its own ``generate`` back, and release the models and caches that are kept."""

    def __enter__(self) -> Accelerated: ...

    def __exit__(self, *_: object) -> None: ...


def accelerate(model: PreTrainedModel, drafter: Any, **options: Any) -> Accelerated:
    """Make ``model.generate`` decode with drafts, from now on, whoever calls it: a trainer, an evaluation, a ``pipeline()``.

    Tokens are those that ``generate`` gives without drafts, as :func:`assisted` says. The caches of a call, its CUDA graphs and the
    prompts that are kept serve the next one, until weights change. A call with a ``custom_generate`` of its own is left alone.
    Copies of the model, by ``copy.deepcopy``, decode with drafts as well; in a pickle the model is as it was before.

    Args:
        model: a loaded model, also one that PEFT or ``torch.compile`` has wrapped.
        drafter: a loaded draft model, a directory or hub id of one, or a drafter's name with options.
        options: those of :func:`assisted`; ``keep_cache`` is True.

    Raises:
        SpecframeError: at once, for a model that cannot generate, a combination that is not lossless, and as :func:`assisted` does.
    """
    make = registry().entry("option", "accelerate").factory
    return make(model, drafter, **{"keep_cache": True, **options})
