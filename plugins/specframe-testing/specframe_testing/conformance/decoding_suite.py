"""Tests for all roles: the tokens equal the reference decoder's."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import attrs
import pytest
from transformers import PreTrainedModel

from specframe.contracts.requests import Request
from specframe_testing import fakes, harness, suite_device, zoo
from specframe_testing.conformance.role_suite import pytest_generate_surroundings
from specframe_testing.conformance.stops import Stopping
from specframe_testing.device.rounds import watched_rounds

LENGTHS = (7, 1, 13, 2, 7)
"""Prompt lengths of the usual ragged batch: one token, equal ones, long ones."""

RIGHT: dict[str, fakes.Right] = {
    "all": None,
    "none": 0,
    "one": 1,
    "by-row": {0: 4, 1: 0, 2: 2, 3: 4, 4: 1},
    "by-turns": lambda index, generated: (3 * index + generated) % 5,
}


@functools.cache
def fake_pair() -> tuple[fakes.FakeModel, fakes.FakeModel]:
    """Return a fake target and a draft that chooses the same in two contexts of three."""
    target = fakes.fake_target()
    return target, fakes.fake_draft(target)


@functools.cache
def real_pair(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a small model of an architecture, and a good draft."""
    target = zoo.build(name)
    return target, zoo.good_draft(target)


def usual_requests(target: PreTrainedModel, new: int = 9, stop: bool = True) -> list[Request]:
    """Return requests of :data:`LENGTHS`, some of which stop early, with pad and eos ids (the same) inside prompts."""
    config = target.config.get_text_config()
    prompts = harness.random_prompts(LENGTHS, config.vocab_size)
    eos = config.eos_token_id if isinstance(config.eos_token_id, int) else 0
    prompts[2][0] = prompts[2][5] = prompts[3][-1] = prompts[4][2] = eos
    return harness.requests(prompts, new, {eos, 5, 11} if stop else frozenset())


class DecodingSuite(Stopping):
    """Equivalence with the reference decoder."""

    architectures: ClassVar[tuple[str, ...]] = ("qwen3",)
    """The architectures of :mod:`specframe_testing.zoo` that the equivalence on real models is tested with."""

    host_waits: ClassVar[int] = 1
    """Times that the host synchronises for the device in a round. More than one needs a reason."""
    first_waits: ClassVar[int] = 0
    """Further waits in the first round of a later run, where something kept of prompts depends on weights that have to be
    compared."""
    host_copies: ClassVar[int] = 2
    """Copies from the host to the device in a round whose rows are those of the round before, at most."""

    pytest_generate_tests = staticmethod(pytest_generate_surroundings)

    def test_equals_reference(self, surroundings: dict[str, Any]) -> None:
        """A ragged batch with pad and eos ids inside prompts decodes to the reference decoder's tokens."""
        target, draft = fake_pair()
        self.verify(self.pipeline(target, draft, **surroundings), usual_requests(target))

    def test_as_on_a_gpu(self) -> None:
        """On a device as strict as CUDA (:mod:`specframe_testing.device`) a run is exact, and no round waits too often."""
        target, draft = fake_pair()
        with suite_device.running_on("sim"), watched_rounds() as watched:
            pipe = self.pipeline(target, draft, batch_size=2, observers=[watched])
            self.verify(pipe, usual_requests(target))
            watched.rounds.clear()  # a model is tried out in its first run
            self.verify(pipe, usual_requests(target))
        for number, one in enumerate(watched.rounds):
            allowed = self.host_waits + (0 if number else self.first_waits)
            assert one.waits <= allowed, f"expected at most {allowed} waits per round (host_waits), got {one}"
        for one in watched.steady:
            allowed = self.host_copies
            assert one.copies <= allowed, f"expected at most {allowed} copies per round (host_copies), got {one}"

    @pytest.mark.parametrize("right", RIGHT)
    def test_any_acceptance(self, right: str) -> None:
        """The tokens do not depend on which draft tokens are right."""
        target, _ = fake_pair()
        asked = usual_requests(target, stop=False)
        self.verify(self.pipeline(target, self.scripted(target, asked, RIGHT[right])), asked)

    def test_equals_reference_on_real_models(self) -> None:
        """Small random models of real architectures decode to the reference decoder's tokens."""
        for name in self.architectures:
            target, draft = real_pair(name)
            self.verify(self.pipeline(target, draft), usual_requests(target, new=6))

    def test_prompts_of_one_token(self) -> None:
        """Prompts of a single token, the eos id among them, need no special case."""
        target, draft = fake_pair()
        self.verify(self.pipeline(target, draft), harness.requests([[0], [5], [60]], 9))

    def test_prompts_of_pad_ids(self) -> None:
        """Pad ids (here also eos) in a prompt are tokens like any others, wherever they are."""
        target, draft = fake_pair()
        prompts = [[0], [0, 0, 0, 0], [0, 7, 0], [7, 0, 0], [9, 9, 9, 9, 9, 9]]
        self.verify(self.pipeline(target, draft, batch_size=5), harness.requests(prompts, 9))

    def test_prompts_of_equal_length(self) -> None:
        """A batch that starts out level and becomes ragged is exact."""
        target, draft = fake_pair()
        prompts = harness.random_prompts([6] * 5, 61, seed=4)
        self.verify(self.pipeline(target, draft, batch_size=5), harness.requests(prompts, 9))

    def test_samples_begin_with_the_row_of_their_prompt(self) -> None:
        """Samples of one prompt, which is read once, are exact."""
        target, draft = fake_pair()
        asked = [attrs.evolve(one, sample=number) for one in usual_requests(target) for number in range(3)]
        self.verify(self.pipeline(target, draft, batch_size=4), asked)

    @pytest.mark.parametrize("batch_size", [1, 2, 8])
    def test_any_batch_size(self, batch_size: int) -> None:
        """The tokens do not depend on how many rows are decoded together."""
        target, draft = fake_pair()
        self.verify(self.pipeline(target, draft, batch_size=batch_size), usual_requests(target))

    def test_any_order(self) -> None:
        """The tokens of a prompt do not depend on where in the list it is."""
        target, draft = fake_pair()
        asked = usual_requests(target)
        prompts = [request.prompt_ids for request in asked]
        forwards = harness.decode(self.pipeline(target, draft), asked)
        turned = harness.requests(prompts[::-1], 9, asked[0].stop_token_ids)
        backwards = harness.decode(self.pipeline(target, draft), turned)
        self.require_lossless()
        assert [r.token_ids for r in forwards] == [r.token_ids for r in backwards[::-1]]

    @pytest.mark.parametrize("draft_length", [1, 7])
    def test_any_draft_length(self, draft_length: int) -> None:
        """The tokens do not depend on how many are drafted."""
        target, draft = fake_pair()
        self.verify(self.pipeline(target, draft, draft_length=draft_length), usual_requests(target))

    def test_lengths_of_their_own(self) -> None:
        """Rows with different numbers of tokens to come each get all of theirs."""
        target, draft = fake_pair()
        prompts = harness.random_prompts([4, 9, 2, 6], 61, seed=2)
        self.verify(self.pipeline(target, draft, batch_size=4), harness.requests(prompts, [1, 14, 3, 8]))

    def test_end_of_context(self) -> None:
        """A sequence that reaches the end of the target's context ends there, like the reference."""
        target = fakes.fake_target(context=20)
        prompts = harness.random_prompts([17, 19, 4, 10], 61, seed=3)
        self.verify(self.pipeline(target, fakes.fake_draft(target)), harness.requests(prompts, 12))

    def test_a_strategy_serves_one_run_after_another(self) -> None:
        """A run, finished or not, does not influence the next run."""
        target, draft = fake_pair()
        asked = usual_requests(target)
        pipe = self.pipeline(target, draft)
        assert next(pipe.as_completed([request.prompt_ids for request in asked], 12)).token_ids
        for _ in range(2):
            self.verify(pipe, asked)
