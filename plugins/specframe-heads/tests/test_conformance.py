"""The suite of heads on every family of heads, and the faults that it catches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from products import crossed
from specframe_heads import features
from specframe_heads.blocks import block_drafter
from specframe_heads.formats.format import Format
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_testing import standard
from specframe_testing.conformance import TreeDrafterSuite
from specframe_testing.heads import block_heads, checkpoints, mtp, stepwise
from specframe_testing.heads.conformance import LAYERS, HeadSuite, replace
from transformers import PreTrainedModel

from specframe.contracts.reports import Outcome


def mostly_right(folder: Path, target: PreTrainedModel) -> None:
    """Save an EAGLE-3 head that is right after two tokens of three, or a random one for targets that are not planted."""
    if target.config.hidden_size == target.config.vocab_size * (LAYERS + 1):
        checkpoints.planted_eagle3(folder, target, 1, [0, 1, 2], slips=3)
    else:
        checkpoints.eagle3(folder, target)


def counted(folder: Path, save: Callable[..., str], **options: Any) -> PreTrainedModel:
    """Save a block head that is right for a target that repeats its last token, and return the target."""
    target = block_heads.counting()
    block_heads.plant(save(folder, target, **options), target.config.num_hidden_layers, 2)
    return target


@pytest.mark.slow
class TestEagle(HeadSuite):
    """A chain of EAGLE-3."""

    name, save = "eagle", staticmethod(mostly_right)
    reduced = staticmethod(functools.partial(checkpoints.eagle3, drafted=40))

    @staticmethod
    def right(folder: Path) -> PreTrainedModel:
        """Save a head that reads the third hidden state."""
        target = checkpoints.planted_target()
        checkpoints.planted_eagle3(folder, target, 3, [1, 3, 6])
        return target


@pytest.mark.slow
class TestEagle2(HeadSuite, TreeDrafterSuite):
    """The tree of EAGLE-2."""

    name, save, options = "eagle", staticmethod(mostly_right), ",tree=dynamic,nodes=7,top=3"

    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    def test_draft_model_is_fed_few_tokens(self, align: str) -> None:
        """A round feeds a head once per depth: pairs of the accepted tokens, or the three nodes of each depth before."""
        for round in self.watch(align=align):
            draft = round.report.draft
            assert len(round.draft) <= draft.depth
            assert all(tokens <= max(self.draft_length + 1, 3 * (draft.depth - 1)) for _, tokens in round.draft)


@pytest.mark.slow
class TestDSpark(HeadSuite):
    """Blocks of DSpark; DFlash's network is the same."""

    name, save, block = "dspark", staticmethod(functools.partial(block_heads.speculators, kind="dspark", size=16)), 6
    reduced = staticmethod(functools.partial(block_heads.speculators, kind="dspark", drafted=40))

    @staticmethod
    def right(folder: Path) -> PreTrainedModel:
        """Save a head that reads the second hidden state."""
        return counted(folder, block_heads.speculators, kind="dspark", ids=(2, 1), size=16)


@pytest.mark.slow
class TestPEagle(HeadSuite):
    """Blocks of P-EAGLE."""

    name, save = "peagle", staticmethod(block_heads.peagle)
    reduced = staticmethod(functools.partial(block_heads.peagle, drafted=40))

    @staticmethod
    def right(folder: Path) -> PreTrainedModel:
        """Save a head that reads the second hidden state."""
        return counted(folder, block_heads.peagle, hidden=32, depth=1, ids=(2, 1, 3))


@pytest.mark.slow
class TestMtp(HeadSuite):
    """An MTP layer in a file."""

    name, save = "mtp", staticmethod(mtp.save_file_of)


@pytest.mark.slow
class TestHydra(HeadSuite):
    """Hydra++ as a chain; Clover's layers before the steps are the same."""

    name, options, chain = "hydra", ",tree=chain", ",tree=chain"

    @staticmethod
    def save(folder: Path, target: PreTrainedModel) -> None:
        """Save an untrained head."""
        stepwise.overfitted(folder, "hydra++", target, [[1, 2]], tokens=4, steps=1)


@pytest.mark.parametrize("suite", [TestEagle, pytest.param(TestDSpark, marks=pytest.mark.slow)])
def test_a_round_waits_once(suite: type[HeadSuite], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device as strict as CUDA heads decode exactly, and a round waits for the device once: the suite's test, here fast."""
    replace(monkeypatch)
    suite().test_as_on_a_gpu()


@pytest.mark.wide
def test_the_suite_finds_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted wait, of states that are looked at, is found by the suite."""
    replace(monkeypatch)
    on_path = features.on_path
    monkeypatch.setattr(
        features, "on_path", lambda outcome, states_BTD: on_path(outcome, states_BTD + 0 * states_BTD.sum().item())
    )
    with pytest.raises(AssertionError, match=r"expected at most 1 waits per round .*got round"):
        TestEagle().test_as_on_a_gpu()


def stale(outcome: Outcome, states_BTD: torch.Tensor, on_path: Callable = features.on_path) -> torch.Tensor:
    """Take the features of the token before each token."""
    return on_path(outcome, states_BTD).roll(1, dims=1)


def one_more(self: Format, *given: Any, layers: Callable = Format.layers, **options: Any) -> tuple[int, ...]:
    """Take the output of a layer for what the next one gives."""
    return tuple(one + 1 for one in layers(self, *given, **options))


def as_ids(whose: str, drafted: int, made_for: int, target: int, d2t: torch.Tensor | None) -> DraftVocabulary:
    """Take offsets for ids."""
    return DraftVocabulary(None if d2t is None else d2t.long() % target, target)


FAULTS: dict[str, tuple[list[Any], str, Any, str]] = {
    "stale feature": ([features, block_drafter], "on_path", stale, "test_features_are_the_rows_own"),
    "off-by-one layer": ([Format], "layers", one_more, "test_an_offset_of_one_lowers_acceptance"),
    "d2t read as ids": ([DraftVocabulary], "of", as_ids, "test_a_vocabulary_of_its_own"),
}


@pytest.mark.wide
@pytest.mark.parametrize("suite", [TestEagle, pytest.param(TestDSpark, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fault", crossed([*FAULTS]))
def test_the_suite_finds_faults_of_heads(
    fault: str, suite: type[HeadSuite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter passes the case, and with the planted fault, with which its output stays exact, it does not."""
    places, member, wrong, case = FAULTS[fault]
    getattr(suite(), case)(tmp_path / "right")
    for place in places:
        monkeypatch.setattr(place, member, wrong)
    with pytest.raises(AssertionError):
        getattr(suite(), case)(tmp_path / "wrong")
