"""How long runs would take that were never made, by the shapes of their models: no weights are loaded."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch

from specframe.devices import kinds
from specframe.errors import SpecframeError
from specframe.models.loading import pick_device
from specframe.plugins.recipe import FIXED_LENGTH
from specframe_lab.comparison.compare import WARM_UP_TOKENS
from specframe_lab.grid import Cell
from specframe_lab.prediction.pair import Pair, precision_of, read_pair
from specframe_lab.prediction.predict import expected_length, round_seconds
from specframe_lab.prediction.profiles import PROFILES, SIDE, DeviceProfile, product_seconds, products_of_rows

if TYPE_CHECKING:
    from specframe_lab.comparison.compare import ComparisonSettings, ComparisonStep
    from specframe_lab.comparison.schemes import Case

CPU_LAYER = 5e-4
"""Seconds that a decoder layer takes on a CPU however little it computes: those of the embedded target on one slow core."""
MATRICES = 16
"""Matrices by which a CPU's bandwidth is measured in a tenth of a second: 64 MB in float32, more than most caches hold."""
ACCEPTANCE = 0.6
"""Chance that a draft token is accepted, where nothing has been measured: about that of the embedded pair, and of Qwen3's pairs."""
CHARACTERS = 4
"""Characters of a prompt's token, since no tokenizer is loaded."""


def modelled_seconds(
    missing: Iterable[ComparisonStep], settings_of: Callable[[Case], ComparisonSettings]
) -> float | None:
    """Return about how many seconds of decoding some runs would take, warming up included, or None where that is not known."""
    pair_of, profile_at, seconds = functools.cache(read_pair), functools.cache(profile_of), 0.0
    try:
        for step in missing:
            cell, settings = step.case.cell, settings_of(step.case)
            pair = pair_of(cell["target"], cell["drafter"], cell["dtype"])
            if (profile := profile_at(cell["device"], cell["dtype"])) is None:
                return None
            warm = settings.warm_up * step.case.timed * min(WARM_UP_TOKENS, settings.max_new_tokens)
            new = settings.max_new_tokens * math.ceil(len(settings.prompts) / cell["batch_size"]) + warm
            seconds += run_seconds(cell, settings, pair, profile, new)
    except SpecframeError:
        return None
    return seconds


def run_seconds(cell: Cell, settings: ComparisonSettings, pair: Pair, profile: DeviceProfile, new: int) -> float:
    """Return the seconds in which all rows of a batch gain ``new`` tokens, and all prompts are read."""
    rows = min(cell["batch_size"], len(settings.prompts))
    prompt = max(1, sum(characters(one) for one in settings.prompts) // CHARACTERS // len(settings.prompts))
    context = prompt + settings.max_new_tokens // 2
    reading = profile.seconds(pair.target.forward(rows, prompt, prompt)) * len(settings.prompts) / rows
    if pair.drafts is None:
        return reading + new * profile.seconds(pair.target.forward(rows, 1, context))
    length = int(cell["draft_length"] if cell["draft_length"].isdigit() else FIXED_LENGTH)
    drafting = pair.drafts.drafting(rows, length, context)
    rounds = new / expected_length(ACCEPTANCE, drafting.depth)
    return reading + rounds * round_seconds(pair.target, drafting, profile, rows, context)


def characters(prompt: object) -> int:
    """Return the characters of a prompt, and of token ids those that as many tokens have."""
    if isinstance(prompt, str):
        return len(prompt)
    ids = isinstance(prompt, list) and all(isinstance(one, int) for one in prompt)
    return CHARACTERS * len(prompt) if ids and isinstance(prompt, list) else len(json.dumps(prompt))


def profile_of(device: str, dtype: str) -> DeviceProfile | None:
    """Return the profile of a device: published for a GPU that is known by name, measured in a moment for a CPU; else None."""
    there = pick_device(device)
    title = (kinds.of(there).title(there) or "").lower()
    if there.type != "cpu":
        return next((profile for name, profile in PROFILES.items() if name in title), None)
    precision = precision_of(dtype) or torch.float32
    with torch.inference_mode():
        weights = torch.ones(MATRICES, SIDE, SIDE, dtype=precision)
        per_weight = products_of_rows(1, weights) / weights.numel()
        took = product_seconds(SIDE, there, precision)
    return DeviceProfile(2 * SIDE**3 / took, weights.itemsize / per_weight, CPU_LAYER)
