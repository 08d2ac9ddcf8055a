"""Heads that are right: each format's layer ids mean the hidden states they should, and an offset of one accepts less."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from specframe_testing import harness
from specframe_testing.heads import checkpoints
from specframe_testing.heads import mtp as mtp_testing

LAYERS, K = 8, 4

HEADS: dict[str, Callable] = {
    "speculators": lambda folder, target: checkpoints.planted_eagle3(folder, target, 3, [1, 3, 6]),
    "speculators, no ids": lambda folder, target: checkpoints.planted_eagle3(folder, target, 4, None),
    "authors": lambda folder, target: checkpoints.planted_eagle3(folder, target, 4, None, "authors"),
    "sglang": lambda folder, target: checkpoints.planted_eagle3(folder, target, 4, [1, 3, 6], "sglang"),
    "eagle-1": lambda folder, target: checkpoints.planted_eagle1(folder, target),
    "eagle-1, speculators": lambda folder, target: checkpoints.planted_eagle1(folder, target, "speculators"),
    "mtp": mtp_testing.planted,
}


def acceptance(target, folder: Path, shift: int = 0, options: str = "", name: str = "eagle", **more) -> float:
    """Return the mean acceptance length of a head, fed hidden states with a shift."""
    asked = harness.requests(harness.random_prompts([3, 1], 12), 16)
    drafter = f"{name},checkpoint={folder},shift={shift}{options}"
    pipe = harness.pipeline(target, drafter, batch_size=3, draft_length=f"fixed,length={K}", **more)
    harness.check(pipe, asked)
    return pipe.report.mean_acceptance_length


@pytest.mark.wide(but=["authors"])
@pytest.mark.parametrize("layout", HEADS)
def test_an_offset_of_one_lowers_acceptance(layout: str, tmp_path: Path) -> None:
    """As the format is read nearly every draft token is accepted; with the layers before, or those after, hardly any is."""
    target = checkpoints.planted_target(LAYERS)
    folder = HEADS[layout](tmp_path, target)
    name = "mtp" if layout == "mtp" else "eagle"
    as_read = acceptance(target, folder, name=name)
    assert as_read > 1 + 0.6 * K  # the last draft of each row is cut by its limit
    for shift in (-1, 1):
        if shift < 0 or not layout.startswith(("eagle-1", "mtp")):  # nothing comes after the last state
            assert acceptance(target, folder, shift, name=name) < as_read - 0.4 * K
