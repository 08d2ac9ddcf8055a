"""Executors: the tokens of every other executor, engines that are stepped, and one value on every rank."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from specframe.contracts.drafts import Budget
from specframe.contracts.engine import Executor
from specframe.engine.engine_clock import HandClock
from specframe.engine.parts import parts_of
from specframe.errors import ModelError
from specframe.plugins.protocols import OFFERED
from specframe.plugins.recipe import Recipe
from specframe.text.sampling import Sampling
from specframe.value_checks import unwrap_guards
from specframe_testing import harness, standard
from specframe_testing.conformance.decoding_suite import fake_pair, usual_requests
from specframe_testing.conformance.role_suite import Suite
from specframe_testing.strict import declared, strict


class ExecutorSuite(Suite):
    """Tests of an executor."""

    role = "executor"

    def engine(self, **options: Any) -> Any:
        """Return an engine of the executor on fake models."""
        target, draft = fake_pair()
        recipe = Recipe(target, draft, batch_size=2, draft_length=3, generation_config=None, **options).checked()
        executor = self.object()
        return executor.open(recipe, parts_of(recipe, executor), [], HandClock())

    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    def test_equals_reference(self, align: str) -> None:
        """A ragged batch decodes to the reference decoder's tokens."""
        target, draft = fake_pair()
        self.verify(self.pipeline(target, draft, align=align), usual_requests(target))

    def test_draws_what_other_executors_draw(self) -> None:
        """A seed gives the tokens that the executor of this process gives, token for token."""
        target, draft = fake_pair()
        prompts = harness.random_prompts((7, 1, 13), target.config.vocab_size)
        found = []
        for executor in (self.make(), "local"):
            pipe = harness.pipeline(
                target, draft, accept=standard.ALWAYS_THE_SAME, draft_length=3, seed=3, executor=executor
            )
            results = pipe.generate(prompts, 12, sampling=Sampling(temperature=1.0, samples=2))
            found.append([result.token_ids for result in results])
        assert found[0] == found[1]

    def test_broadcasts(self) -> None:
        """``broadcast`` returns the value it is given, on rank 0, of the same type."""
        executor = self.object()
        for value in (3, 0.25, True, "text", None, (1, 2), [1.5, "a"], Budget(4)):
            assert type(executor.broadcast(value)) is type(value)
            assert executor.broadcast(value) == value

    def test_offers_what_it_has(self) -> None:
        """It has the members of each word that it offers, and no member of a word that it does not."""
        executor = unwrap_guards(self.object())
        for word, protocol in OFFERED["executor"].items():
            own = declared(protocol) - declared(Executor)
            has = {name for name in own if inspect.getattr_static(executor, name, None) is not None}
            assert has == (own if word in executor.offers else set()), word

    def test_uses_what_is_declared(self) -> None:
        """The executor and its engine decode where nothing but the members of their protocols can be seen."""
        target, draft = fake_pair()
        executor = strict(self.object(), Executor)
        harness.check(harness.pipeline(target, draft, draft_length=3, executor=executor), usual_requests(target))

    def test_engines_are_stepped(self) -> None:
        """An engine takes requests between steps, ends one that is aborted, and is idle in the end; then it gives no report."""
        target, _ = fake_pair()
        engine, done = self.engine(), []
        assert engine.idle
        requests = usual_requests(target, stop=False)
        for request in requests[:3]:
            engine.add(request)
        engine.step()
        for request in requests[3:]:
            engine.add(request)
        aborted = engine.abort(requests[0].key)
        while not engine.idle:
            if report := engine.step():
                done += report.finished
        assert engine.step() is None
        engine.close()
        assert aborted.finish_reason == "abort"
        found = {sequence.request.index: sequence.token_ids for sequence in done}
        assert found == {one.index: harness.expected(target, one)[0] for one in requests[1:]}

    def test_loads_what_is_read(self) -> None:
        """An executor that takes part in loading returns the model that is read, and passes on why one cannot be read."""
        executor, (target, draft) = self.object(), fake_pair()
        if "loading" not in executor.offers:
            pytest.skip("this executor does not take part in loading")

        def fails(**options: Any) -> Any:
            raise ModelError("the weights are not there")

        for role, model in (("target", target), ("draft", draft)):
            assert executor.load(role, model.config, lambda model=model, **options: model) is model
            with pytest.raises(ModelError, match="the weights are not there"):
                executor.load(role, model.config, fails)

    @pytest.mark.parametrize(
        "error", [torch.OutOfMemoryError("no memory"), ModelError("no layers")], ids=["memory", "fault"]
    )
    def test_blocks_end_alike(self, error: Exception) -> None:
        """In an executor with ranks, an error of a block is raised as it is, and the next block is as good as the first."""
        executor = self.object()
        if "ranks" not in executor.offers:
            pytest.skip("this executor has no ranks")
        assert executor.rank == 0
        for _ in range(2):
            with pytest.raises(type(error), match=str(error)), executor.barrier():
                raise error
            with executor.barrier() as stand:
                stand()
