"""Kinds of state, and stores of states: whatever is rejected, moved, forked or read in chunks, a state holds the row's own tokens.

Their suites decode with them, and compare tokens with the reference decoder's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specframe.contracts.cache import KVBackend
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch
from specframe.contracts.states import StateBackend, StateStore
from specframe.errors import ModelError
from specframe.model.runner import ModelRunner
from specframe.pipeline import Pipeline
from specframe.plugins.protocols import require_members
from specframe.plugins.registry import registry
from specframe.text.sampling import Sampling
from specframe_testing import fakes, harness, standard, states
from specframe_testing.conformance.alignment import BY_ROW
from specframe_testing.conformance.decoding_suite import RIGHT, usual_requests
from specframe_testing.logits import KeptLogits, parted
from specframe_testing.strict import declared, strict


class StateKindSuite:
    """Tests of a kind of state, on a small model with a layer that keeps it. The kind has to be registered."""

    temperature = 1.0
    """A temperature at which the model's samples differ."""

    def model(self) -> PreTrainedModel:
        """Return a small model with random weights, the same one every time."""
        raise NotImplementedError(f"{type(self).__name__}: model() must return a model that keeps such a state")

    def asked(self, new: int = 9) -> list[Request]:
        """Return ragged requests with pad and eos ids inside prompts, some of which stop early."""
        return usual_requests(self.model(), new)

    def scripted(self, asked: list[Request], right: fakes.Right = RIGHT["by-turns"]) -> fakes.ScriptedDrafter:
        """Return a drafter whose drafts are right for ``right`` tokens."""
        return fakes.ScriptedDrafter(harness.truth(self.model(), asked), right)

    def check(self, drafter: Any, asked: list[Request], **options: Any) -> list[harness.Result]:
        """Decode requests exactly, and return the results."""
        return harness.check(self.pipeline(drafter, **options), asked)

    def pipeline(self, drafter: Any, **options: Any) -> Pipeline:
        """Return a pipeline with the model as its target."""
        return harness.pipeline(self.model(), drafter, **options)

    def test_the_model_keeps_states(self) -> None:
        """The kind knows layers of the model, and their states have shapes."""
        layers = ModelRunner(self.model(), "target").state_layers
        assert layers
        assert all(len(one.shape.sizes) == len(one.shape.dtypes) > 0 for one in layers.values())

    @pytest.mark.parametrize("batch_size", [1, 3, 8])
    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    def test_chains(self, align: str, batch_size: int) -> None:
        """Every alignment decodes to the reference decoder's tokens, whatever is accepted."""
        asked = self.asked()
        self.check(self.scripted(asked), asked, align=align, batch_size=batch_size, draft_length=4)

    @pytest.mark.parametrize("right", [None, 0, BY_ROW], ids=["all", "none", "by-row"])
    @pytest.mark.parametrize("batch_size", [1, 3, 8])
    @pytest.mark.parametrize("align", standard.FOR_TREES)
    def test_trees(self, align: str, batch_size: int, right: Any) -> None:
        """A tree's nodes go on from their parents' states, and the state takes in the accepted path alone."""
        asked = self.asked()
        drafter = fakes.ScriptedTree(harness.truth(self.model(), asked), right)
        self.check(drafter, asked, align=align, batch_size=batch_size, draft_length=3)

    def test_plain_decoding(self) -> None:
        """Rounds without a draft take in one token of every row."""
        self.check(None, self.asked(), batch_size=3)

    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    def test_prompts_in_pieces(self, align: str) -> None:
        """Long prompts are read in chunks of mixed batches, and every chunk is committed."""
        vocabulary = self.model().config.get_text_config().vocab_size
        asked = harness.requests(harness.random_prompts([3, 17, 2, 11, 9], vocabulary), 8)
        options: dict[str, Any] = {"align": align, "schedule": standard.READING_IN_PIECES, "batch_size": 2}
        self.check(self.scripted(asked), asked, draft_length=3, **options)

    def test_rows_that_begin_after_unlike_numbers_of_tokens(self) -> None:
        """Rows go on from states that were kept of others, with padding between the state and a row's first token."""
        vocabulary = self.model().config.get_text_config().vocab_size
        long, other = harness.random_prompts([11, 7], vocabulary)
        asked = harness.requests([[*long, 5], other, [*long[:7], 5, 6], [*long[:3], 7, 8], long[:5]], 6)
        for options in ({}, {"schedule": standard.READING_IN_PIECES}):  # type: dict[str, Any]
            pipe = self.keeping("prompt-lookup", batch_size=8, **options)
            for _ in range(2):
                harness.check(pipe, asked)
            assert pipe.report.prefix_hit_tokens == 10 + 6 + 8 + 4 + 4

    def keeping(self, drafter: Any, **options: Any) -> Pipeline:
        """Return a pipeline with the model as its target, whose KV backend keeps what prompts begin with."""
        return harness.pipeline(self.model(), drafter, kv=standard.KEEPING, **options)

    def test_a_drafter_on_the_targets_states(self) -> None:
        """What a drafter feeds into the target's cache and has forgotten leaves no trace in the states."""
        asked = self.asked()
        self.check(fakes.Sharing(), asked, batch_size=3, draft_length=4)

    @pytest.mark.parametrize("batch_size", [1, 2, 3, 8])
    def test_samples(self, batch_size: int) -> None:
        """Samples of a prompt get the tokens that they get alone, whether they start from its first sample's states or read it."""
        vocabulary = self.model().config.get_text_config().vocab_size
        prompts = harness.random_prompts([6, 1, 9], vocabulary)
        options = Sampling(temperature=self.temperature, samples=4)

        def sampled(**given: Any) -> list[list[int]]:
            pipe = self.pipeline(None, accept=standard.ALWAYS_THE_SAME, **given)
            return [one.token_ids for one in pipe.generate(prompts, 7, sampling=options)]

        alone = sampled(batch_size=1)
        assert sampled(batch_size=batch_size) == alone
        assert len({tuple(one) for one in alone}) > len(prompts)

    @pytest.mark.parametrize("align", standard.ALIGNMENTS[:2])
    def test_bitwise_equality(self, align: str) -> None:
        """A kind that offers "bitwise" has the same logits to the bit in any batch, after any draft; others are refused."""
        runner, asked = ModelRunner(self.model(), "target"), self.asked(5)
        if any(layer.by_token is None for layer in runner.state_layers.values()):
            with pytest.raises(ModelError, match="cannot be decoded with bitwise: layer"):
                self.pipeline(None, bitwise=True)
            return
        found = []
        for drafter, batch_size in ((None, 1), (self.scripted(asked), 3)):
            kept = KeptLogits()
            options = {"accept": kept, "align": align, "batch_size": batch_size, "draft_length": 3}
            harness.decode(self.pipeline(drafter, bitwise=True, **options), asked)
            found.append(kept.logits)
        assert not parted(*found)

    @pytest.mark.parametrize("align", standard.ALIGNMENTS[:2])
    def test_memory_that_runs_out(self, align: str) -> None:
        """Rows that are put back and read again begin with new states, and lose nothing."""
        asked = self.asked(12)
        drafter = self.scripted(asked)
        propose, calls = drafter.propose, list[int]()

        def short(batch: Batch, budget: Any) -> Any:
            calls.append(budget.depth)
            if len(calls) in (3, 8):
                raise torch.OutOfMemoryError("out of memory")
            return propose(batch, budget)

        drafter.propose = short  # type: ignore[method-assign]
        with pytest.warns(match="memory ran out"):
            self.check(drafter, asked, align=align, batch_size=4, draft_length=3)
        assert len(calls) > 8

    @pytest.mark.parametrize("schedule", standard.SCHEDULERS)
    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    def test_rows_that_change_their_places(self, align: str, schedule: str) -> None:
        """States follow their sequences when batches shrink, are regrouped and schedule others."""
        vocabulary = self.model().config.get_text_config().vocab_size
        prompts = harness.random_prompts([7, 1, 13, 4, 4, 9, 2, 6], vocabulary)
        asked = harness.requests(prompts, [3, 14, 6, 9, 2, 11, 8, 5])
        self.check(self.scripted(asked), asked, align=align, schedule=schedule, batch_size=3, draft_length=3)

    @pytest.mark.parametrize("align", standard.ALIGNMENTS[:2])
    def test_invariants_hold(self, align: str) -> None:
        """The checks of invariants, which compute the target's choices without a cache, find nothing."""
        asked = self.asked()
        self.check(self.scripted(asked), asked, align=align, batch_size=3, draft_length=3, check=True)


class StateStoreSuite(StateKindSuite):
    """Tests of a KV backend that keeps states, on a fake model whose state shows every token too many, too few or astray."""

    def make(self, inner: KVBackend) -> StateBackend:
        """Return the backend; ``inner`` is one that an alignment asks for, which may keep the keys and values."""
        raise NotImplementedError(f"{type(self).__name__}: make() must return a KV backend that offers 'states'")

    @pytest.fixture(autouse=True)
    def _known(self) -> Iterator[None]:
        with states.known():
            yield

    def model(self) -> PreTrainedModel:
        """Return the fake model."""
        return fake_target()

    def pipeline(self, drafter: Any, **options: Any) -> Pipeline:
        """Return a pipeline whose states and keys and values are the backend's, of which nothing undeclared can be seen."""
        known = registry()
        inner = known.make("KV backend", known.make("alignment", options.get("align", standard.ALIGNMENTS[0])).kv)
        return super().pipeline(drafter, kv=strict(self.make(inner), KVBackend), **options)

    def test_the_backend_keeps_states(self) -> None:
        """It offers "states", and has what goes with the word."""
        backend = self.make(registry().make("KV backend", standard.STORE))
        assert "states" in backend.offers
        require_members("KV backend", backend)
        runner, rows = ModelRunner(self.model(), "target"), 2
        backend.open(runner.kv_shapes, rows, 8, runner.device)
        store = backend.open_states(runner.state_layers, rows, runner.device)
        assert all(hasattr(store, name) for name in declared(StateStore))


@functools.cache
def fake_target() -> states.FakeStateModel:
    """Return the fake model of all suites."""
    return states.fake_state_target()
