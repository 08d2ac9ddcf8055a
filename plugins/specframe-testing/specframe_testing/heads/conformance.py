"""A conformance suite for drafters with heads, in addition to those of :mod:`specframe_testing.conformance`.

The fake models of those suites have no hidden states. Planted ones take their places, see
:func:`specframe_testing.heads.checkpoints.planted_target`.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from specframe.pipeline import Pipeline
from specframe.plugins.compose import strategy
from specframe.plugins.entries import Entry
from specframe.plugins.registry import registry
from specframe_testing import fakes, harness, standard, zoo
from specframe_testing.conformance import DrafterSuite, decoding_suite, drafter_suite, stops, tree_suite
from specframe_testing.heads import checkpoints
from specframe_testing.heads.scripted import ScriptedCalls, scripted

LAYERS = 2
"""Layers of the planted targets."""

Save = Callable[[Path, PreTrainedModel], Any]
"""Saves a head for a target to a folder."""


@functools.cache
def planted(vocabulary: int = 61, eos: int = 0, context: int = 64) -> PreTrainedModel:
    """Return a target in place of a fake one."""
    target = checkpoints.planted_target(LAYERS, vocabulary)
    target.config.eos_token_id, target.config.max_position_embeddings = eos, context
    return target


def replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put planted models in place of fake ones."""
    for module in (decoding_suite, drafter_suite, tree_suite):
        monkeypatch.setattr(module, "fake_pair", lambda: (planted(), None))
        monkeypatch.setattr(module, "real_pair", lambda name: (zoo.build(name), None), raising=False)
    monkeypatch.setattr(stops, "stop_target", lambda: planted(509))
    monkeypatch.setattr(stops, "RIGHT", {"its own": None})  # a head drafts what it drafts, so one run is enough
    monkeypatch.setattr(fakes, "fake_target", planted)
    monkeypatch.setattr(fakes, "fake_draft", lambda *_, **__: None)


class HeadSuite(DrafterSuite):
    """Tests of a drafter that reads the target's features, with a head for each of the suite's targets.

    A head that is fed the wrong features, or whose tokens are taken for others, decodes exactly all the same: it drafts worse. So
    the suite looks at drafts, too.
    """

    name: ClassVar[str]
    """The name under which the drafter is registered."""
    save: ClassVar[Save]
    """Saves a head, best one that is right in part."""
    reduced: ClassVar[Save | None] = None
    """Saves a head with a vocabulary of its own, in a file with ``d2t`` and ``t2d``, or None if the format has none."""
    right: ClassVar[Callable[[Path], PreTrainedModel] | None] = None
    """Saves a head that is right because of the hidden states that its file names, and returns its target, whose hidden states all
    differ, or None if there is none."""
    options: ClassVar[str] = ""
    """Options after the checkpoint, as in ",tree=dynamic"."""
    chain: ClassVar[str] = ""
    """Options for a chain, where that is not the default."""
    block: ClassVar[int | None] = None
    """Tokens of the block that every draft begins, however short it is, or None if a draft's own are fed."""
    architectures = ("qwen3",)

    def registered(self) -> list[Entry]:
        """Return the name under which the drafter is registered."""
        return [registry().entry(self.role, self.name)]

    @pytest.fixture(autouse=True)
    def models(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put planted models in place of fake ones."""
        replace(monkeypatch)

    def object(self) -> Any:
        """Return the drafter of a head."""
        return self.pipeline(planted()).composition.drafter

    def pipeline(self, target: PreTrainedModel, draft: Any = None, **options: Any) -> Pipeline:
        """Return a pipeline with a head for the target; with the target as draft model: one that is always right."""
        self.make = lambda: f"{self.name},checkpoint={self.saved(target, draft is target)}{self.options}"  # type: ignore[method-assign]
        return super().pipeline(target, None, **options)

    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    def test_draft_model_is_fed_few_tokens(self, align: str) -> None:
        """A round feeds a head the accepted tokens, K + 1 at most, and those of its own draft."""
        for round in self.watch(align=align):
            assert sum(tokens for _, tokens in round.draft) <= self.draft_length + 1 + (self.block or self.draft_length)

    def test_features_are_the_rows_own(self, tmp_path: Path) -> None:
        """Whatever was accepted in the rounds before, a head's logits are those that it has when it reads the same text anew."""
        target = zoo.build("qwen3")
        type(self).save(tmp_path, target)
        asked = harness.requests(harness.random_prompts([5, 1, 9], zoo.VOCABULARY), 12)
        rounds: list[ScriptedCalls] = []
        made = scripted(self.opened(tmp_path), rounds, harness.truth(target, asked), lambda place: place % 3 > 0)
        harness.check(harness.pipeline(target, made, batch_size=3, draft_length=3), asked)
        whole = [one for one in rounds if not one.drafted and one.count == 3]  # a block's logits depend on its length
        assert len(whole) >= 6, "hardly anything was drafted"
        anew: list[ScriptedCalls] = []
        pipe = harness.pipeline(target, scripted(self.opened(tmp_path), anew), batch_size=1, draft_length=3)
        for one in whole:
            anew.clear()
            harness.decode(pipe, harness.requests([one.ids[:-1]], 5))  # the round that reads them gives the last token
            assert anew[0].ids == one.ids
            assert torch.allclose(anew[0].logits_V, one.logits_V, atol=1e-3), f"other logits after {one.ids}"

    def test_an_offset_of_one_lowers_acceptance(self, tmp_path: Path) -> None:
        """With the hidden states that the file means most of a right head's tokens are accepted, with others hardly any."""
        if (right := type(self).right) is None:
            pytest.skip("no head of this kind is right because of its hidden states")
        target, shares = right(tmp_path), {}
        asked = harness.requests([[7] * 9, [1], [4, 4], [3] * 5], 9)
        for shift in (0, -1, 1):
            made = self.opened(tmp_path, f",shift={shift}")
            pipe = harness.pipeline(target, made, batch_size=4, draft_length=3)
            harness.check(pipe, asked)
            shares[shift] = pipe.report.num_accepted_draft_tokens / pipe.report.num_draft_tokens
        assert shares[0] > 0.6, "a head that is right is hardly accepted"
        assert max(shares[-1], shares[1]) < shares[0] - 0.4

    def test_a_vocabulary_of_its_own(self, tmp_path: Path) -> None:
        """Of a head with a smaller vocabulary the drafted ids are those that ``t2d`` marks, and several of them."""
        if (reduced := type(self).reduced) is None:
            pytest.skip("the format has no vocabulary of its own")
        target, feeds = zoo.build("qwen3"), harness.Feeds()
        reduced(tmp_path, target)
        known = set(load_file(tmp_path / "model.safetensors")["t2d"].nonzero()[:, 0].tolist())
        assert 0 < len(known) < zoo.VOCABULARY
        pipe = harness.pipeline(target, self.opened(tmp_path), batch_size=3, draft_length=3, observers=[feeds])
        harness.check(pipe, harness.requests(harness.random_prompts([5, 1, 9], zoo.VOCABULARY), 12))
        drafted = {token for round in feeds.decoding for token in round.report.draft.tokens_BN.flatten().tolist()}
        assert len(drafted) > 3, "hardly anything was drafted"
        assert drafted <= known

    def opened(self, folder: Path, more: str = "") -> Any:
        """Return the drafter with a saved head, as a chain."""
        return strategy(registry(), "drafter", f"{self.name},checkpoint={folder}{self.chain}{more}")

    @classmethod
    @functools.cache
    def saved(cls, target: PreTrainedModel, perfect: bool = False) -> Path:
        """Return the folder of a head for a target, or of one of EAGLE-3 that is always right."""
        folder = Path(tempfile.mkdtemp())
        if perfect:
            checkpoints.planted_eagle3(folder, target, 1, [0, 1, 2])
        else:
            cls.save(folder, target)
        return folder
