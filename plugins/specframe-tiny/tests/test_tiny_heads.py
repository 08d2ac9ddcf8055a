"""The heads of the embedded target: their files, that they decode exactly, and how much is accepted."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from specframe_testing import harness
from specframe_testing.constraint_fakes import Even, OneByOne
from specframe_tiny import FOLDER, HEADS, train
from tokenizers import Tokenizer

from specframe import Pipeline
from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.models import pairs
from specframe.reference import reference_decode

THERE = [kind for kind in HEADS if (FOLDER / "heads" / kind).is_dir()]
CELLS = [
    *((kind, "", "ragged") for kind in THERE),
    ("eagle3", ",branch=3/2/1", "eqspec"),
    ("medusa", ",tree=chain", "exspec"),
]
"""Each head drafts what it drafts by default, a tree or a chain; the cells with options are slow."""
DRAFTERS = {"eagle3": "eagle"}
"""Drafters that are not called as their heads are."""
LEAST = 0.8
"""The part of the card's mean acceptance length that has to be reached: on other prompts, after another version's library."""


def held_out(count: int, length: int) -> list[list[int]]:
    """Return pieces of the modules that were not trained on."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "target" / "tokenizer.json"))
    library = Path(sysconfig.get_path("stdlib"))
    stream = train.encode(tokenizer, [(library / name).read_text(encoding="utf-8") for name in sorted(train.HELD_OUT)])
    starts = torch.linspace(0, len(stream) - length - 1, count).long().tolist()
    return [stream[start : start + length - 7 * (number % 5)].tolist() for number, start in enumerate(starts)]


@pytest.fixture(scope="module")
def target() -> Any:
    """The embedded target."""
    return Pipeline("tiny", None, dtype="float32", device="cpu").target_model


def test_the_draft_model_is_still_the_default() -> None:
    """ "auto" takes the embedded draft model, whatever heads there are, and a head alone takes the embedded target."""
    assert pairs.paired_drafter("tiny") == "tiny-draft"
    assert pairs.choose("tiny", "auto")[1:] == ("model", "tiny-draft")
    assert pairs.choose("auto", "tiny-draft")[0] == "tiny"


@pytest.mark.wide
@pytest.mark.parametrize("kind", THERE)
def test_a_heads_files(kind: str) -> None:
    """A head has at most 3 MB, figures, and a configuration that names no folder of the machine that it was made on."""
    folder = FOLDER / "heads" / kind
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors", "figures.json"}
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 3_000_000
    assert json.loads((folder / "figures.json").read_text())["kind"] == kind
    text = (folder / "config.json").read_text()
    config = json.loads(text)
    if kind in ("eagle3", "dflash"):
        assert config["speculators_model_type"] == kind
        assert config["speculators_config"]["verifier"]["name_or_path"] == "tiny"
    assert "/" not in text
    assert pairs.choose("auto", f"tiny-{kind}")[:2] == ("tiny", f"{DRAFTERS.get(kind, kind)},checkpoint={folder}")


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "options", "align"), [pytest.param(*cell, marks=[pytest.mark.slow] * bool(cell[1])) for cell in CELLS]
)
def test_a_head_decodes_exactly(kind: str, options: str, align: str, target: Any) -> None:
    """Chains and trees of a trained head give the target's own tokens in ragged batches, and some of their tokens are accepted."""
    pipe = harness.pipeline(target, f"tiny-{kind}{options}", align=align, batch_size=3, draft_length=4)
    harness.check(pipe, harness.requests(held_out(6, 64), 24, {0}))
    assert pipe.report.mean_acceptance_length > 1.2


class Odd(Observer):
    """Counts the drafted tokens, and those of them that are odd."""

    def __init__(self) -> None:
        self.drafted = self.odd = 0

    def round(self, report: RoundReport) -> None:
        """Count a round's."""
        self.drafted += report.draft.tokens_BN.numel()
        self.odd += int((report.draft.tokens_BN % 2).sum())


@pytest.mark.wide
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "clover2")) for kind in THERE])
def test_a_head_drafts_under_a_constraint(kind: str, target: Any) -> None:
    """A head drafts only what the constraint allows, and the tokens are the reference decoder's with the same constraint."""
    watched = Odd()
    asked = [attrs.evolve(one, constraint=Even()) for one in harness.requests(held_out(4, 64), 16, {0})]
    pipe = harness.pipeline(target, f"tiny-{kind}", batch_size=3, draft_length=3, observers=[watched])
    results = harness.decode(pipe, asked)
    for request, result in zip(asked, results, strict=True):
        own = OneByOne(Even(), request, target.config.vocab_size)
        assert result.token_ids == reference_decode(target, request.prompt_ids, 16, {0}, [own])
    assert watched.odd == 0 < watched.drafted


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("kind", THERE)
def test_a_head_reaches_the_cards_figure(kind: str, target: Any) -> None:
    """As a chain a head's mean acceptance length on held-out modules is about that of its card."""
    figures = json.loads((FOLDER / "heads" / kind / "figures.json").read_text())
    chain = f"tiny-{kind}{',tree=chain' if kind == 'medusa' else ''}"
    pipe = harness.pipeline(target, chain, batch_size=16, draft_length=4)
    list(pipe.generate(held_out(16, 96), max_new_tokens=48))
    assert pipe.report.mean_acceptance_length > LEAST * figures["mean_acceptance_length"]
