"""Processors and criteria that do not depend on the ids they are shown alone are found out before they are used."""

from __future__ import annotations

import pytest
import torch
from specframe_std.processor_check import State, unfit
from specframe_testing import fakes
from transformers import LogitsProcessor, RepetitionPenaltyLogitsProcessor, StoppingCriteria

from specframe import Pipeline, Sampling
from specframe.errors import SpecframeWarning

IDS = torch.tensor([[5, 6, 7], [8, 9, 10], [5, 6, 11]])


class Holding(LogitsProcessor):
    """Holds some object, and changes it in a given way when it is called."""

    def __init__(self, held, change):
        self.held, self.change = held, change

    def __call__(self, input_ids, scores):
        self.change(self)
        return scores


def rebind(one):
    """Put another number in place."""
    one.held += 1


REMEMBERING = {
    "a number": (0, rebind),
    "a list": ([], lambda one: one.held.append(1)),
    "a tensor written to": (torch.zeros(3), lambda one: one.held.add_(1)),
    "itself": ([], lambda one: one.held.append(one)),
    "many entries": ([0] * 20_000, lambda one: one.held.append(1)),
}


@pytest.mark.wide(but=["itself"])
@pytest.mark.parametrize("what", REMEMBERING)
def test_what_remembers_its_calls_is_found_out(what):
    """A change of what an object holds, however deep, is seen, and takes place in a copy."""
    held, change = REMEMBERING[what]
    processor = Holding(held, change)
    before = State(vars(processor)).written
    assert unfit([processor], [], IDS, 20) == ["plugins.Holding, which changes from call to call"]
    assert State(vars(processor)).written == before


@pytest.mark.wide
def test_what_goes_by_the_call_before_is_found_out():
    """An answer that depends on the prefix before is seen, though what is held is the same after each pair of prefixes."""

    class Following(LogitsProcessor):
        seen = 0

        def __call__(self, input_ids, scores):
            before, self.seen = self.seen, input_ids.shape[1]
            return scores.roll(before, 1)

    assert unfit([Following()], [], IDS, 20) == ["plugins.Following, which changes from call to call"]


@pytest.mark.wide
def test_criteria_are_tried():
    """A criterion that looks at the first row alone is found out; one that depends on each row's ids, or has one answer, is not."""
    criteria = {
        "first": lambda ids, scores: (ids[0, -1] > 9).expand(len(ids)),
        "each": lambda ids, scores: ids[:, -1] > 9,
        "never": lambda ids, scores: False,
    }
    for name, expected in {"first": 1, "each": 0, "never": 0}.items():
        assert len(unfit([], [criteria[name]], IDS, 20)) == expected


@pytest.mark.wide
def test_processors_of_transformers_are_not_tried():
    """What transformers makes of a row's ids alone is known; what inherits from it is tried."""

    class Counted(RepetitionPenaltyLogitsProcessor):
        calls = 0

        def __call__(self, input_ids, scores):
            self.calls += 1
            return super().__call__(input_ids, scores)

    assert len(unfit([RepetitionPenaltyLogitsProcessor(1.2), Counted(1.2)], [], IDS, 20)) == 1


@pytest.mark.wide
def test_a_pipeline_warns_of_what_remembers_its_calls():
    """A pipeline names processors and criteria that count their calls before it decodes, each once, and nothing else."""
    pipe = Pipeline(target=fakes.fake_target(), drafter=None)
    counting = Holding(0, rebind)
    free = Holding(None, lambda one: None)
    with pytest.warns(SpecframeWarning, match="Holding, which changes from call to call") as said:
        list(pipe.generate([[5, 6], [7, 8]], 3, sampling=Sampling(processors=(free, counting))))
    assert len([one for one in said if issubclass(one.category, SpecframeWarning)]) == 1


def test_a_pipeline_warns_of_criteria_alone():
    """Criteria are tried where no processor is given."""

    class Counting(StoppingCriteria):
        seen = 0

        def __call__(self, input_ids, scores):
            self.seen += 1
            return torch.zeros(len(input_ids), dtype=torch.bool)

    pipe = Pipeline(target=fakes.fake_target(), drafter=None)
    with pytest.warns(SpecframeWarning, match="Counting, which changes from call to call"):
        list(pipe.generate([[5, 6]], 3, sampling=Sampling(criteria=(Counting(),))))
