"""Base of all suites: one strategy under test, with standard strategies for the other roles."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from transformers import PreTrainedModel

from specframe.contracts.cache import rounding
from specframe.contracts.requests import Request
from specframe.engine.guards.guard_table import guard
from specframe.pipeline import Pipeline
from specframe.plugins.compose import ASKED_OF, OPTIONS, strategy
from specframe.plugins.entries import ROLES
from specframe.plugins.protocols import OFFERED
from specframe.plugins.registry import registry
from specframe.value_checks import unwrap_guards
from specframe_testing import fakes, harness


class Suite:
    """One strategy under test. The role's suite names the role; the author writes :meth:`make`."""

    role: ClassVar[str]
    companions: ClassVar[dict[str, Any]] = {}
    """Options of :class:`specframe.Pipeline` for the roles that are not under test."""
    draft_length: ClassVar[int] = 4

    def make(self) -> Any:
        """Return a new strategy, or the name of a registered one."""
        raise NotImplementedError(f"{type(self).__name__}: make() must return a {self.role} or its name")

    def object(self) -> Any:
        """Return the strategy, with its calls checked against the contract."""
        return guard(self.role, strategy(registry(), self.role, self.make()))

    @property
    def lossless(self) -> bool:
        """Whether the combination under test is declared to give the reference decoder's tokens."""
        return True

    def surroundings(self) -> Sequence[dict[str, Any]]:
        """Return the sets of other strategies that the equivalence tests run under."""
        return [{}]

    def pipeline(self, target: PreTrainedModel, draft: Any = None, **options: Any) -> Pipeline:
        """Return a pipeline with the strategy under test; ``draft`` is a draft model or a scripted drafter."""
        options = {"draft_length": self.draft_length, "batch_size": 3, **self.companions, **options}
        return harness.pipeline(target, draft, **{**options, OPTIONS[self.role]: self.make()})

    def scripted(self, target: PreTrainedModel, asked: Sequence[Request], right: fakes.Right = None) -> Any:
        """Return a drafter of which the given number of tokens is right. Suites of drafters return a draft model."""
        return fakes.ScriptedDrafter(harness.truth(target, asked), right)

    def verify(self, pipe: Pipeline, asked: Sequence[Request]) -> list[harness.Result]:
        """Decode; assert that every sequence is complete and, where declared lossless, exact."""
        results = harness.decode(pipe, asked)
        assert [result.index for result in results] == [request.index for request in asked]
        assert all(result.finish_reason in ("eos", "length", "stop") and result.token_ids for result in results)
        if self.lossless:
            harness.assert_exact(pipe.target_model, asked, results, rounding(pipe.composition.kv))
        return results

    def test_capabilities_are_spelt_right(self) -> None:
        """No word that it needs or offers is nearly one that others use: a misspelt one would have no effect."""
        one = self.object()
        own = registry().entry_of(self.role, one)
        traits = [entry.traits for kind in ROLES for entry in registry().of(kind) if entry != own]
        known = {word for one in traits for word in one.able("needs") | one.able("offers")}
        known.update(ASKED_OF, *OFFERED.values())
        for word in sorted((getattr(one, "needs", set()) | getattr(one, "offers", set())) - known):
            near = difflib.get_close_matches(word, known, n=1, cutoff=0.8)
            assert not near, f"{type(unwrap_guards(one)).__name__} has the word {word!r}: did you mean {near[0]!r}?"

    def require_lossless(self) -> None:
        """Skip a test that says nothing about a strategy that is not declared lossless."""
        if not self.lossless:
            pytest.skip(f"this {self.role} is not declared to give the target's own output")


def pytest_generate_surroundings(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``surroundings`` once for each set of other strategies."""
    if "surroundings" in metafunc.fixturenames:
        sets = metafunc.cls().surroundings()
        metafunc.parametrize("surroundings", sets, ids=["-".join(map(str, s.values())) or "default" for s in sets])
