"""The conformance suite of drafters, on targets that have hidden states and heads that read them.

The fake models of the suite have no hidden states. Planted ones take their places: :func:`specframe_heads.testing.planted_target`.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from specframe_heads import features, testing
from specframe_heads.blocks import testing as blocks
from specframe_heads.head import PairDrafter
from specframe_heads.mtp import testing as mtp
from specframe_heads.stepwise import testing as stepwise
from transformers import PreTrainedModel

from specframe.errors import SpecframeError
from specframe.pipeline import Pipeline
from specframe.testing import fakes, standard, zoo
from specframe.testing.conformance import DrafterSuite, TreeDrafterSuite, decoding, drafter, stops, trees

LAYERS = 2


@functools.cache
def planted(vocabulary: int = 61, eos: int = 0, context: int = 64) -> PreTrainedModel:
    """Return a target in the place of a fake one."""
    target = testing.planted_target(LAYERS, vocabulary)
    target.config.eos_token_id, target.config.max_position_embeddings = eos, context
    return target


def replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put planted models in the places of fake ones."""
    for module in (decoding, drafter, trees):
        monkeypatch.setattr(module, "fake_pair", lambda: (planted(), None))
        monkeypatch.setattr(module, "real_pair", lambda name: (zoo.build(name), None), raising=False)
    monkeypatch.setattr(stops, "stop_target", lambda: planted(509))
    monkeypatch.setattr(fakes, "fake_target", planted)
    monkeypatch.setattr(fakes, "fake_draft", lambda *_, **__: None)


class Heads(DrafterSuite):
    """The suite, with a head for each of its targets."""

    save: ClassVar[Callable[[Path, PreTrainedModel], Any]]
    """Saves a head for a target to a folder."""
    name: ClassVar[str]
    options: ClassVar[str] = ""
    architectures = ("qwen3",)

    @pytest.fixture(autouse=True)
    def models(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put planted models in the places of fake ones."""
        replace(monkeypatch)

    def pipeline(self, target: PreTrainedModel, draft: Any = None, **options: Any) -> Pipeline:
        """Return a pipeline with a head for the target; with the target as draft model: one that is always right."""
        self.make = lambda: f"{self.name},checkpoint={saved(type(self), target, draft is target)}{self.options}"  # type: ignore[method-assign]
        return super().pipeline(target, None, **options)

    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    def test_draft_model_is_fed_few_tokens(self, align: str) -> None:
        """A round feeds a head what stood, K + 1 tokens at most, and those of its own draft."""
        for round in self.watch(align=align):
            assert sum(tokens for _, tokens in round.draft) <= 2 * self.draft_length + 1


@functools.cache
def saved(suite: type[Heads], target: PreTrainedModel, perfect: bool = False) -> Path:
    """Return the folder of a suite's head for a target, or of one of EAGLE-3 that is always right."""
    folder = Path(tempfile.mkdtemp())
    if perfect:
        testing.planted_eagle3(folder, target, 1, [0, 1, 2])
    else:
        suite.save(folder, target)
    return folder


def mostly_right(folder: Path, target: PreTrainedModel) -> None:
    """Save an EAGLE-3 head that is right after two tokens of three, or a random one for targets that are not planted."""
    if target.config.hidden_size == target.config.vocab_size * (LAYERS + 1):
        testing.planted_eagle3(folder, target, 1, [0, 1, 2], slips=3)
    else:
        testing.eagle3(folder, target)


@pytest.mark.slow
class TestEagle(Heads):
    """A chain of EAGLE-3."""

    name, save = "eagle", staticmethod(mostly_right)


@pytest.mark.slow
class TestEagle2(Heads, TreeDrafterSuite):
    """The tree of EAGLE-2."""

    name, save, options = "eagle", staticmethod(mostly_right), ",tree=dynamic,nodes=7,top=3"

    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    def test_draft_model_is_fed_few_tokens(self, align: str) -> None:
        """A round feeds a head once per depth: pairs of the tokens that stood, or of nodes."""
        for round in self.watch(align=align):
            draft = round.report.draft
            assert len(round.draft) <= draft.depth
            assert all(tokens <= max(self.draft_length + 1, draft.nodes) for _, tokens in round.draft)


@pytest.mark.slow
class TestDSpark(Heads):
    """Blocks of DSpark; DFlash's network is the same."""

    name, save = "dspark", staticmethod(functools.partial(blocks.speculators, kind="dspark", size=16))


@pytest.mark.slow
class TestPEagle(Heads):
    """Blocks of P-EAGLE."""

    name, save = "peagle", staticmethod(blocks.peagle)


@pytest.mark.slow
class TestMtp(Heads):
    """An MTP layer in a file."""

    name, save = "mtp", staticmethod(mtp.save_file_of)


@pytest.mark.slow
class TestHydra(Heads):
    """Hydra++ as a chain; Clover's layers before the steps are the same."""

    name, options = "hydra", ",tree=chain"

    @staticmethod
    def save(folder: Path, target: PreTrainedModel) -> None:
        """Save an untrained head."""
        stepwise.overfitted(folder, "hydra++", target, [[1, 2]], tokens=4, steps=1)


@pytest.mark.parametrize("suite", [TestEagle, TestDSpark])
def test_a_round_waits_once(suite: type[Heads], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device as strict as CUDA heads decode exactly, and a round waits for the device once: the suite's test, here fast."""
    replace(monkeypatch)
    suite().test_as_on_a_gpu()


def test_the_suite_finds_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted wait, of counts that are sent to the device plainly, is found by the suite."""
    replace(monkeypatch)
    monkeypatch.setattr(features, "on_device", lambda values, device: torch.from_numpy(values).to(device))
    with pytest.raises(AssertionError, match="expected 1 wait per round, got round"):
        TestEagle().test_as_on_a_gpu()


def test_the_suite_finds_drafts_that_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault, a chain of a token more than the budget, is found by the suite."""
    replace(monkeypatch)
    chain = PairDrafter.chain
    monkeypatch.setattr(PairDrafter, "chain", lambda self, batch, states, depth: chain(self, batch, states, depth + 1))
    with pytest.raises((AssertionError, SpecframeError)):
        TestEagle().test_draft_is_no_longer_than_asked()
