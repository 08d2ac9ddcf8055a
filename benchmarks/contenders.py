"""What is measured: specframe's schemes, and transformers' own ``generate``."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import attrs
import torch
from roofline import Volume
from transformers import PreTrainedModel

import specframe
from specframe import Pipeline
from specframe.devices import kinds
from specframe.plugins.registry import registry

Decoder = Callable[[list[list[int]], int], list[list[int]]]
PLAIN, ASSISTED, DROP_IN = "transformers plain", "transformers assisted", "generate, drop-in"
DRAFTING = "ragged"
"""The contender with the pair's draft model under the default alignment."""
MODULES = ("textwrap", "queue", "statistics", "calendar", "shelve", "bisect", "sched", "fractions")
"""Modules of the standard library that the embedded pair was not trained on."""


@attrs.frozen
class Models:
    """A pair to decode with, and the tokenizer of its prompts."""

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: Any
    stops: frozenset[int]


@attrs.frozen(eq=False)
class Contender:
    """One way to decode prompts, at one batch size. ``pipe`` is of those of specframe, ``volume`` of those with the pair alone."""

    name: str
    batch: int
    decode: Decoder
    pipe: Pipeline | None = None
    volume: Volume | None = None


def held_out_prompts(tokenizer: Any, count: int, longest: int = 128) -> list[list[int]]:
    """Return parts of held-out modules, 24 to ``longest`` tokens each, no two the same."""
    folder = Path(sysconfig.get_path("stdlib"))
    options = {"add_special_tokens": False, "verbose": False}
    streams = [tokenizer((folder / f"{name}.py").read_text(encoding="utf-8"), **options).input_ids for name in MODULES]
    prompts = []
    for number in range(count):
        stream, length = streams[number % len(streams)], 24 + 37 * number % (longest - 23)
        start = (number // len(streams) * 397 + 61) % (len(stream) - length)
        prompts.append(stream[start : start + length])
    return prompts


def contenders(
    models: Models, batch: int, draft_length: int, compiled: bool = False, drafters: Collection[str] = ()
) -> list[Contender]:
    """Return every contender at a batch size, those that ratios are taken to first.

    Args:
        compiled: two with compiled layers, too.
        drafters: further drafters, under ``ragged``, such as heads.
    """
    found = [Contender(PLAIN, batch, theirs(models, None, batch, draft_length))]
    if batch == 1:
        found.append(Contender(ASSISTED, batch, theirs(models, models.draft, batch, draft_length)))
    assistant = specframe.assisted(models.draft, draft_length)
    found.append(Contender(DROP_IN, batch, theirs(models, None, batch, draft_length, custom_generate=assistant)))
    recorded = kinds.of(models.target.device).recording is not None
    found += [
        ours(models, name, batch, **options) for name, options in schemes(draft_length, compiled, recorded).items()
    ]
    others = [ours(models, name, batch, drafter=name, draft_length=draft_length) for name in drafters]
    return found + [attrs.evolve(one, volume=None) for one in others]  # they move other bytes than the pair's


def schemes(draft_length: int, compiled: bool = False, recorded: bool = False) -> dict[str, dict[str, Any]]:
    """Return what each of specframe's schemes asks of the pipeline, the most wanted first; plain decoding has no draft.

    ``recorded``: the device records graphs, and ``ragged`` is run without them, too.
    """
    known = registry()
    drafting = {align: {"align": align, "draft_length": draft_length} for align in ("ragged", "exspec", "eqspec")}
    found: dict[str, dict[str, Any]] = {"plain": {"drafter": None}, **drafting}
    if "goodput" in known.names("draft-length policy"):
        found["goodput"] = {"draft_length": "goodput"}
    if recorded:
        found["ragged, not recorded"] = {**found["ragged"], "graphs": "off"}
    if "rollback" in known.names("alignment"):
        found["rollback"] = {"align": "rollback", "draft_length": draft_length}
    if compiled:
        found |= {f"{name}, compiled": {**found[name], "layers": "compiled"} for name in ("plain", "ragged")}
    return found


def ours(models: Models, name: str, batch: int, **options: Any) -> Contender:
    """Return one of specframe's schemes."""
    volume = Volume()
    chosen = {"drafter": models.draft, "tokenizer": models.tokenizer, **options}
    pipe = Pipeline(models.target, batch_size=batch, observers=[volume], **chosen)

    def decode(prompts: list[list[int]], new: int) -> list[list[int]]:
        volume.reset()
        return [result.token_ids for result in pipe.generate(prompts, max_new_tokens=new)]

    return Contender(name, batch, decode, pipe, volume)


def theirs(models: Models, draft: PreTrainedModel | None, batch: int, draft_length: int, **options: Any) -> Decoder:
    """Return transformers' ``generate`` over batches of left-padded prompts, assisted when a draft is given."""
    options |= {"do_sample": False, "pad_token_id": 0}
    generate: Any = models.target.generate
    if draft is not None:
        settings: Any = draft.generation_config
        settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = draft_length, "constant"
        settings.assistant_confidence_threshold = 0.0
        options["assistant_model"] = draft

    def decode(prompts: list[list[int]], new: int) -> list[list[int]]:
        generated = []
        for start in range(0, len(prompts), batch):
            ids_BT, mask_BT = padded(prompts[start : start + batch], models.target.device)
            full = generate(ids_BT, attention_mask=mask_BT, max_new_tokens=new, **options)
            generated += [cut(row, models.stops) for row in full[:, ids_BT.shape[1] :].tolist()]
        return generated

    return decode


def padded(prompts: list[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prompts padded on the left, and their mask."""
    width = max(map(len, prompts))
    ids = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def cut(ids: list[int], stops: Collection[int]) -> list[int]:
    """Return ids up to and including the first stop id."""
    return next((ids[: place + 1] for place, token in enumerate(ids) if token in stops), ids)
