"""Every family of heads, one table: output is the target's own, and a row's drafts are its own whatever happens around it.

Heads have random weights: ``steered`` puts the target's tokens on a path of each draft.
The slow tests hold every family in every form, and ``SPECFRAME_FULL_MATRIX=1`` runs all cells.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import safetensors
import torch
from head_drafts import Depths, in_runs
from safetensors import safe_open
from specframe_memory.footprint import HEAD, Workload
from specframe_memory.memory_plan import ladder_of
from specframe_memory.meta_parts import named_parts
from specframe_std.graphs import captured_rounds
from specframe_testing import harness, suite_device, zoo
from specframe_testing.device.launches import refuse_waits
from specframe_testing.heads import block_heads, checkpoints, mtp, stepwise
from specframe_testing.heads.scripted import Cramped, Drafted, steered
from transformers import PreTrainedModel

from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.engine import loop
from specframe.plugins.compose import strategy
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry
from specframe.text.sampling import Sampling

Save = Callable[[Path, PreTrainedModel], Any]


def by_kind(kind: str, folder: Path, target: PreTrainedModel) -> None:
    """Save a head of Medusa's kind after one step of training."""
    stepwise.overfitted(folder, kind, target, [[1, 2]], tokens=4, steps=1)


FAMILIES: dict[str, tuple[str, Save, bool]] = {
    "eagle-1": ("eagle", checkpoints.eagle1, True),
    "eagle-3": ("eagle", functools.partial(checkpoints.eagle3, drafted=70, layers=2), True),
    "medusa": ("medusa", functools.partial(by_kind, "medusa"), True),
    "hydra": ("hydra", functools.partial(by_kind, "hydra"), True),
    "hydra++": ("hydra", functools.partial(by_kind, "hydra++"), True),
    "clover": ("clover", functools.partial(by_kind, "clover"), True),
    "clover2": ("clover2", functools.partial(by_kind, "clover2"), True),
    "mtp": ("mtp", mtp.save_file_of, True),
    "dflash": ("dflash", functools.partial(block_heads.speculators, drafted=70), True),
    "dspark": ("dspark", functools.partial(block_heads.speculators, kind="dspark", head="rnn"), True),
    "peagle": ("peagle", functools.partial(block_heads.peagle, drafted=70), True),
    "pard": ("pard", block_heads.pard, True),
    "mtp-2": ("mtp", functools.partial(mtp.save_file_of, layers=2), False),
}
"""The drafter of each family, what saves a head, and whether it drafts trees."""
SHAPES = {"chain": ",tree=chain", "static": ",branch=3/2/1", "dynamic": ",tree=dynamic,nodes=7,top=3"}
FORMS = [
    (family, shape) for family, (*_, trees) in FAMILIES.items() for shape in (SHAPES if trees else list(SHAPES)[:1])
]
ARCHITECTURES = ("llama", "qwen3", "mistral", "gemma3", "gpt2", "phi3")
"""Shared heads, tied embeddings, sliding windows in all layers and in some, learned positions, a key head for each query head."""
IN_PLACE_OF = {("mtp", "gpt2"): "glm4", ("mtp-2", "gpt2"): "glm4"}
"""Architectures that a family cannot have, and others for them: an MTP layer is one of the target's kind, with rotary factors."""
ALIGNMENTS = ("ragged", "eqspec", "exspec", "rollback")
BATCH_SIZES = (1, 3, 8)
RULES = ("greedy", "gumbel")


class Cell(NamedTuple):
    family: str
    shape: str
    architecture: str
    align: str
    batch_size: int
    rule: str

    def __str__(self) -> str:
        return "-".join(map(str, self))


def fitting(family: str, architecture: str) -> str:
    """Return an architecture, or the one in its place for a family that cannot have it."""
    return IN_PLACE_OF.get((family, architecture), architecture)


CELLS = [
    Cell(*form, fitting(form[0], ARCHITECTURES[(n + n // 6) % 6]), ALIGNMENTS[n % 4], BATCH_SIZES[n % 3], RULES[n % 2])
    for n, form in enumerate(FORMS)
]
"""Every family in every form, the other values by turns; or all cells."""
if os.environ.get("SPECFRAME_FULL_MATRIX") == "1":
    AXES = itertools.product(ARCHITECTURES, ALIGNMENTS, BATCH_SIZES, RULES)
    CELLS = [Cell(*form, fitting(form[0], name), *more) for form, (name, *more) in itertools.product(FORMS, AXES)]


@functools.cache
def target_of(architecture: str) -> PreTrainedModel:
    """Return a small target."""
    return zoo.build(architecture)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return a function that returns the folder of a family's head for an architecture."""

    @functools.cache
    def made(family: str, architecture: str) -> Path:
        folder = tmp_path_factory.mktemp("head") / "head"
        FAMILIES[family][1](folder, target_of(architecture))
        return folder

    return made


def drafter_of(
    family: str,
    shape: str,
    folder: Path,
    truth: Callable[[Request], Any],
    right: Callable[[int], bool] = in_runs,
) -> tuple[Any, dict[tuple[int, ...], Drafted]]:
    """Return a drafter of a family in a form, steered, and what takes its drafts."""
    name, _, trees = FAMILIES[family]
    drafts: dict[tuple[int, ...], Drafted] = {}
    made = strategy(registry(), "drafter", f"{name},checkpoint={folder}{SHAPES[shape] if trees else ''}")
    return steered(made, drafts, truth, right), drafts


PROMPTS, NEW = zoo.eos_prompts((1, 40, 2, 17, 5, 28, 9, 3, 1)), 9


@functools.cache
def plainly(architecture: str) -> list[list[int]]:
    """Return what plain sampling gives the prompts."""
    pipe = harness.pipeline(target_of(architecture), None, accept="gumbel", batch_size=4, seed=3)
    return [one.token_ids for one in pipe.generate(PROMPTS, NEW, sampling=Sampling(temperature=0.9))]


HYBRID = [
    pytest.param(
        Cell(*form, zoo.HYBRIDS[0], ALIGNMENTS[number % 4], BATCH_SIZES[number % 3], RULES[number % 2]),
        marks=() if form in (("eagle-3", "dynamic"), ("mtp", "chain")) else pytest.mark.slow,
    )
    for number, form in enumerate(FORMS)
    if form[0] != "pard"  # its drafts are made by feeding tokens to the target itself again
]
"""Every form on a target that has layers with states, the other values by turns."""


@pytest.mark.wide
@pytest.mark.parametrize("cell", [*CELLS, *HYBRID], ids=str)
def test_every_family_is_exact(cell: Cell, saved: Callable[[str, str], Path]) -> None:
    """Chains and trees of every family give the target's own tokens; ``rollback`` accepts fewer in batches."""
    target = target_of(cell.architecture)
    asked = harness.requests(PROMPTS, NEW, {zoo.EOS, 3})
    known = harness.truth(target, asked) if cell.rule == "greedy" else plainly(cell.architecture)
    folder = saved(cell.family, cell.architecture)
    drafter, drafts = drafter_of(cell.family, cell.shape, folder, lambda request: known[request.index])
    options = {"align": cell.align, "accept": cell.rule, "batch_size": cell.batch_size, "draft_length": 3, "seed": 3}
    options["rounds"] = "deferred"  # where the alignment lets them be
    pipe = harness.pipeline(target, drafter, **options)
    if cell.rule == "greedy":
        harness.check(pipe, asked)
    else:
        found = [one.token_ids for one in pipe.generate(PROMPTS, NEW, sampling=Sampling(temperature=0.9))]
        assert found == known
    assert drafts, "nothing was drafted"
    few = cell.align == "rollback" and cell.batch_size > 1
    assert pipe.report.mean_acceptance_length > (1.0 if few else 1.3)


LIMITS = (23, 10, 28, 33, 17)
"""The lengths at which rows end."""
SAMPLED = 4
"""Tokens of a sample: one round can end it."""


def drafts_of(
    family: str, shape: str, folder: Path, way: str, limits: tuple[int, ...] = LIMITS, **options: Any
) -> dict[tuple[int, ...], Drafted]:
    """Decode steered drafts, compare the tokens, and return what the head drafted for every row and length."""
    target, given = target_of("qwen3"), harness.random_prompts([5, 1, 12, 29, 3], zoo.VOCABULARY)
    options = {"draft_length": 3, "seed": 5, **options}
    if way != "samples":
        asked = harness.requests(given, [limit - len(one) for one, limit in zip(given, limits, strict=True)])
        known = harness.truth(target, asked)
        drafter, drafts = drafter_of(family, shape, folder, lambda request: known[request.index])
        harness.check(harness.pipeline(target, drafter, **options), asked)
        return drafts
    how, sampled = Sampling(temperature=1.0, samples=3), samples()
    drafter, drafts = drafter_of(family, shape, folder, lambda request: sampled[request.key])
    pipe = harness.pipeline(target, drafter, accept="gumbel", **options)
    found = {(one.index, one.sample): one.token_ids for one in pipe.generate(given, SAMPLED, sampling=how)}
    assert found == sampled
    return drafts


@functools.cache
def samples() -> dict[tuple[int, ...], list[int]]:
    """Return what plain sampling gives for three samples of each prompt."""
    pipe = harness.pipeline(target_of("qwen3"), None, accept="gumbel", batch_size=4, seed=5)
    given = harness.random_prompts([5, 1, 12, 29, 3], zoo.VOCABULARY)
    how = Sampling(temperature=1.0, samples=3)
    return {(one.index, one.sample): one.token_ids for one in pipe.generate(given, SAMPLED, sampling=how)}


@pytest.fixture(scope="session")
def alone(saved: Callable[[str, str], Path]) -> Callable[..., dict[tuple[int, ...], Drafted]]:
    """Return a function that returns the drafts of rows that are decoded one after the other."""

    @functools.cache
    def made(family: str, shape: str, sampled: bool) -> dict[tuple[int, ...], Drafted]:
        way = "samples" if sampled else "places"
        return drafts_of(family, shape, saved(family, "qwen3"), way, batch_size=1)

    return made


def assert_alike(shape: str, one: Drafted, other: Drafted) -> None:
    """Compare two drafts as far as both have been asked for: those near a row's end are cut."""
    torch.testing.assert_close(one.first_V, other.first_V, atol=0.01, rtol=0)  # kernels round, other features are 1 off
    depth = min(one.depth, other.depth)
    if shape == "chain":
        assert one.tokens[:depth] == other.tokens[:depth]
    elif (one.depth, len(one.tokens)) == (other.depth, len(other.tokens)):
        assert one == other


LONELY = (23, 3, 13, 30, 4)
"""Lengths with which prompts of one token are read together with a row, which then is alone again."""
DEFERRED: dict[str, tuple[str, int, Any, tuple[int, ...]]] = {
    "rows": ("places", 3, 3, LIMITS),
    "depths": ("places", 3, Depths, LIMITS),
    "lonely": ("places", 2, 3, LONELY),
    "seldom": ("places", 3, functools.partial(Depths, 3, *[0] * 4), LIMITS),
    "samples": ("samples", 2, 3, LIMITS),
}
"""What is decoded in deferred rounds: whether samples are, the batch size, the draft length, and where rows end."""


@pytest.mark.wide(but=["lonely-mtp-2-chain", "lonely-peagle-chain"])
@pytest.mark.parametrize(("family", "shape"), FORMS)
@pytest.mark.parametrize("kind", DEFERRED)
def test_deferred_rounds_draft_what_others_do(
    kind: str,
    family: str,
    shape: str,
    saved: Callable[[str, str], Path],
    alone: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A head takes the features of a round before the host has read it: each row drafts what it drafts alone."""
    way, batch_size, length, limits = DEFERRED[kind]
    launched, launch = list[Any](), loop.launch
    monkeypatch.setattr(loop, "launch", lambda *given: (launched.append(given[-1]), launch(*given))[1])
    usual = alone(family, shape, way == "samples")
    assert not any(launched)
    length = length if isinstance(length, int) else length()
    options = {"batch_size": batch_size, "draft_length": length, "rounds": "deferred"}
    found = drafts_of(family, shape, saved(family, "qwen3"), way, limits, **options)
    assert sum(one is not None for one in launched) > 4
    ends = [min(both) for both in zip(limits, LIMITS, strict=True)] if way == "places" else [99] * len(limits)
    shared = [key for key in usual.keys() & found.keys() if key[-1] < ends[key[0]] - 1]
    assert len(shared) > 3
    for key in shared:
        assert_alike(shape, usual[key], found[key])


@pytest.mark.wide(but=["eagle-3-static"])
@pytest.mark.parametrize(("family", "shape"), FORMS)
def test_deferred_rounds_accept_what_others_do(family: str, shape: str, saved: Callable[[str, str], Path]) -> None:
    """Limits of one token to five, the context's end, stops that the host finds: the tokens, and as many drafted and accepted."""
    target = target_of("qwen3")
    prompts = harness.random_prompts([5, 1, 12, zoo.CONTEXT - 6, 3, 8, 2, 7], zoo.VOCABULARY)
    asked = harness.requests(prompts, [1, 2, 3, 9, 4, 5, 20, 13], {zoo.EOS, 3})
    asked[5:] = [attrs.evolve(one, stop_checks=(At(place),)) for place, one in enumerate(asked[5:], start=3)]
    known, found = [harness.continuation(target, one.prompt_ids, 24) for one in asked], []
    for rounds in ("synchronous", "deferred"):
        drafter, _ = drafter_of(family, shape, saved(family, "qwen3"), lambda request: known[request.index])
        pipe = harness.pipeline(target, drafter, draft_length=3, batch_size=3, rounds=rounds)
        found.append([one.metrics for one in harness.check(pipe, asked)])
    if shape != "dynamic":  # near the ends its depth is cut later, and its nodes are others
        assert found[0] == found[1]


class At:
    """A stop check that ends a sequence at a token of its own."""

    def __init__(self, place: int) -> None:
        self._place = place

    def first(self, ids: np.ndarray, prompt_length: int, fresh: int) -> int | None:
        """Return the place of that token."""
        place = prompt_length + self._place - (len(ids) - fresh)
        return place if 0 <= place < fresh else None


EARLY = [("dspark", f"chain,{option}") for option in ("confidence=0.5", "token_cost=0.2")]
"""Drafts that end early."""


@pytest.mark.wide(but=["medusa-static"])
@pytest.mark.parametrize(("family", "shape"), [*FORMS, *EARLY])
def test_no_launch_waits(
    family: str, shape: str, saved: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device a head drafts for the round that is launched ahead without a wait for the one before it."""
    ahead = refuse_waits(monkeypatch)
    name, _, trees = FAMILIES[family]
    drafter = f"{name},checkpoint={saved(family, 'qwen3')}{SHAPES.get(shape, f',tree={shape}') if trees else ''}"
    with suite_device.running_on("sim"):
        harness.device()
        pipe = harness.pipeline(target_of("qwen3"), drafter, batch_size=2, draft_length=3)
        harness.check(pipe, harness.requests(harness.random_prompts([5, 3, 4], zoo.VOCABULARY), [9, 12, 6]))
    assert len(ahead) > 3


@pytest.mark.wide
@pytest.mark.parametrize(("family", "shape"), FORMS)
def test_memory_that_runs_out_in_deferred_rounds(family: str, shape: str, saved: Callable[[str, str], Path]) -> None:
    """Rows that are read again after a launch has run out of memory have the target's tokens."""
    target = target_of("qwen3")
    asked = harness.requests(harness.random_prompts([5, 1, 12, 3], zoo.VOCABULARY), [9, 14, 6, 11])
    known = harness.truth(target, asked)
    drafter, _ = drafter_of(family, shape, saved(family, "qwen3"), lambda request: known[request.index])
    options = {"draft_length": 3, "batch_size": 3, "rounds": "deferred", "verify": Cramped()}
    with pytest.warns(RuntimeWarning, match="memory ran out"):
        harness.check(harness.pipeline(target, drafter, **options), asked)


@pytest.mark.wide(but=["dflash"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_request_begins_from_a_row_at_its_limit(family: str, saved: Callable[[str, str], Path]) -> None:
    """A row at its limit is shorter on the device. A request with its prompt copies it then, and drafts what it drafts alone."""
    target, given, found = target_of("qwen3"), harness.random_prompts([5, 9, 12], zoo.VOCABULARY), []
    asked = harness.requests([*given, given[1]], [2, 3, 12, 12])  # the first ends just before the second
    known = [harness.continuation(target, one.prompt_ids, 20) for one in asked]
    with suite_device.running_on("sim"):  # where drafts beyond a row's end are not cut
        harness.device()
        for options in ({"batch_size": 1, "rounds": "synchronous"}, {"batch_size": 3, "schedule": "continuous,wait=0"}):
            drafter, drafts = drafter_of(
                family, "chain", saved(family, "qwen3"), lambda request: known[request.index], lambda place: place > 1
            )
            harness.check(harness.pipeline(target, drafter, draft_length=3, **options), asked)
            found.append({key: made for key, made in drafts.items() if key[0] == 3})
    shared = found[0].keys() & found[1].keys()
    assert len(shared) > 2
    for key in shared:
        assert_alike("chain", found[0][key], found[1][key])


class Told(Observer):
    """Keeps what was drafted in each round."""

    def __init__(self) -> None:
        self.drafts: list[Any] = []

    def round(self, report: RoundReport) -> None:
        """Take in a round."""
        self.drafts.append((report.lengths.tolist(), report.draft.tokens_BN.tolist()))


@pytest.mark.filterwarnings("error:whole rounds are not captured")
@pytest.mark.wide(but=["eagle-3"])
@pytest.mark.parametrize("family", ["eagle-1", "eagle-3", "medusa", "hydra", "hydra++", "clover", "clover2"])
def test_captured_rounds_draft_what_others_do(
    family: str, saved: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of a head are captured whole, with the features that they leave for the next ones, whatever is accepted."""
    name, decoded = FAMILIES[family][0], captured_rounds.CapturedRounds.decoded
    replayed, found = list[Any](), list[Any]()
    monkeypatch.setattr(
        captured_rounds.CapturedRounds,
        "decoded",
        lambda self, kind, *given: (flight := decoded(self, kind, *given), replayed.extend([kind] if flight else []))[
            0
        ],
    )
    asked = harness.requests(harness.random_prompts([5, 1, 12, 4], zoo.VOCABULARY), [30, 13, 36, 20])
    with suite_device.running_on("sim"):
        harness.device()
        target = target_of("qwen3")
        for times in (1, 10**9):
            monkeypatch.setattr(captured_rounds, "ROUNDS", times)
            for length in (2, Depths(), Depths(1, 1, 1, 3, 1, *[0] * 8)):  # features wait; at last their buffer grows
                told, drafter = Told(), f"{name},checkpoint={saved(family, 'qwen3')},tree=chain"
                options = {"batch_size": 3, "draft_length": length, "accept": "synthetic,rate=0.6", "observers": [told]}
                results = harness.decode(harness.pipeline(target, None, drafter=drafter, **options), asked)
                found.append((told.drafts, [one.token_ids for one in results], [one.metrics for one in results]))
    assert found[:3] == found[3:]
    assert len(replayed) > 10


@contextlib.contextmanager
def without_numbers(path: Path, framework: str) -> Iterator[Any]:
    """Open a safetensors file none of whose tensors is read but whole numbers."""
    with safe_open(path, framework=framework) as file:

        def whole(name: str) -> torch.Tensor:
            tensor: torch.Tensor = file.get_tensor(name)
            assert not tensor.is_floating_point(), f"{name} is read"
            return tensor

        yield SimpleNamespace(keys=file.keys, get_slice=file.get_slice, get_tensor=whole)


@pytest.mark.wide(but=["hydra++"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_planned_without_its_numbers(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a safetensors file the header suffices, and whole numbers, which map tokens."""
    target = target_of(fitting(family, "qwen3"))
    target.save_pretrained(tmp_path / "target")
    name, save, _ = FAMILIES[family]
    save(tmp_path / "head", target)
    monkeypatch.setattr(safetensors, "safe_open", without_numbers)
    shape = SHAPES["dynamic"] if FAMILIES[family][2] else ""
    recipe = Recipe(str(tmp_path / "target"), f"{name},checkpoint={tmp_path / 'head'}{shape}").checked()
    recipe = recipe.named(registry())
    ladder = ladder_of(recipe, named_parts(recipe, torch.bfloat16), True)
    found = ladder.step(Workload(2, 9, 16), 7).footprint
    assert found.parts[HEAD] > 0
