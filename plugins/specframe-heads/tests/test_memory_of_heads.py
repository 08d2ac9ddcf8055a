"""The memory of runs with heads, profiled beforehand without their numbers, and held under a bound."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planned import Case, model
from specframe_heads import checkpoint
from specframe_heads.eagle.eagle_drafter import Eagle
from specframe_memory.allocations import Allocations
from specframe_memory.footprint import CACHE, HEAD, Workload
from specframe_memory.memory_plan import ladder_of
from specframe_memory.meta_parts import hollow_parts
from specframe_testing.heads import block_heads, checkpoints, stepwise

from specframe import Pipeline, Sampling

LOAD = Workload(4, 170, 180)
SAVED: dict[str, Callable[..., Any]] = {
    "eagle3": functools.partial(checkpoints.eagle3, drafted=700, layers=2),
    "medusa": lambda folder, target: stepwise.overfitted(folder, "medusa", target, [[1, 2]], tokens=4, steps=1),
    "dflash": functools.partial(block_heads.speculators, hidden=64, size=16, ids=(1, 2)),
}


@functools.cache
def saved(kind: str) -> Path:
    """Return the folder of a head for the target, the same one every time."""
    folder = Path(tempfile.mkdtemp(prefix="head")) / kind
    SAVED[kind](folder, model("deep"))
    return folder


def case(kind: str, shape: str = "", load: Workload = LOAD, **options: Any) -> Case:
    """Return a pair of the target and a head."""
    return Case("deep", f"{saved(kind)}{shape}", load, {"draft_length": 3, "kv": "slab", **options})


TREE = ",tree=dynamic,nodes=8,top=3"
SLOW = [
    pytest.param(kind, shape, kv, marks=pytest.mark.slow)
    for kind, shape, kv in (
        ("eagle3", "", "paged"),
        ("eagle3", "", "pool"),
        ("eagle3", TREE, "pool"),
        ("medusa", "", "slab"),
        ("medusa", ",tree=chain", "slab"),
        ("medusa", ",tree=chain", "paged"),
        ("dflash", TREE, "slab"),
        ("dflash", "", "pool"),
    )
]


@pytest.mark.wide(but=["eagle3--slab"])
@pytest.mark.parametrize(
    ("kind", "shape", "kv"), [("eagle3", "", "slab"), ("eagle3", TREE, "slab"), ("dflash", "", "slab"), *SLOW]
)
def test_memory_is_told_beforehand(kind: str, shape: str, kv: str) -> None:
    """Caches take the profiled bytes, the head's to the byte, and all together no more, and less by 3% at most."""
    one, counter = case(kind, shape, kv=kv), Allocations()
    told = one.planned()
    report = one.counted(counter).report
    if kv == "pool":  # a bound: rows grow in any order
        assert report.peak_kv_bytes <= told.kv_bytes <= 1.4 * report.peak_kv_bytes
        assert counter.peak.total <= told.total
    else:
        assert told.kv_bytes == report.peak_kv_bytes
        assert counter.peak.total <= told.total <= 1.03 * counter.peak.total
    assert sum(told.parts.values()) == told.total
    assert told.parts[CACHE] >= told.kv_bytes
    files = checkpoint.Checkpoint.open(str(saved(kind))).load()
    weights = sum(tensor.nbytes for tensor in files.values() if tensor.is_floating_point())
    assert weights <= told.parts[HEAD] <= 1.05 * weights  # and its mapping of tokens and rotary factors


def test_a_head_stays_in_memory_where_nothing_is_drafted() -> None:
    """Plain decoding is profiled with the head that was asked for, since the next requests may have room for it."""
    pipe = case("medusa").pipeline()
    ladder = ladder_of(pipe.recipe, hollow_parts(pipe.recipe, pipe.parts), True)
    load = Workload(1, 8, 16)
    plain, drafting = (ladder.step(load, nodes).footprint.parts for nodes in (0, 1))
    assert plain[HEAD] == drafting[HEAD] > 0


@pytest.mark.wide
def test_a_drafter_object_is_copied_before_it_starts() -> None:
    """A plan of requests with a temperature, which comes after greedy ones were decoded, is made of the same copies."""
    pipe = Pipeline(model("deep"), Eagle(str(saved("eagle3"))), draft_length=2, memory="64MB", generation_config=None)
    assert len([*pipe.generate([[1, 2, 3]], 4)]) == 1
    assert len([*pipe.generate([[1, 2, 3]], 4, sampling=Sampling(temperature=1.0))]) == 1
