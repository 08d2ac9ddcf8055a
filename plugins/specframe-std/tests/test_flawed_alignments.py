"""Published flaws, their fixes, and the batch's minimum: exactly as exact as they say."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from specframe_testing import fakes, harness, zoo
from transformers import PreTrainedModel

from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer

LENGTHS = [7, 1, 13, 2, 7, 19, 30, 4]


@functools.cache
def pair(architecture: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a target and a draft that often agrees with it."""
    if architecture == "fake":
        target = fakes.fake_target()
        return target, fakes.fake_draft(target)
    model = zoo.build(architecture)
    return model, zoo.good_draft(model, noise=0.02)


def asked(target: PreTrainedModel, new: int = 12) -> list[Request]:
    """Return ragged requests, some of which stop early, with pad and eos ids in a prompt."""
    prompts = harness.random_prompts(LENGTHS, target.config.vocab_size)
    prompts[2][0] = prompts[3][-1] = target.config.eos_token_id
    return harness.requests(prompts, new, {target.config.eos_token_id, 3})


def exact_share(architecture: str, **options: Any) -> float:
    """Return the share of sequences that are the reference decoder's."""
    target, draft = pair(architecture)
    wanted = asked(target)
    results = harness.decode(harness.pipeline(target, draft, **{"batch_size": 3, "draft_length": 4, **options}), wanted)
    equal = [result.token_ids == harness.expected(target, request)[0] for request, result in zip(wanted, results)]
    return sum(equal) / len(equal)


@pytest.mark.wide
@pytest.mark.parametrize("align", ["masking", "padding"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("architecture", ["qwen3", "gpt2"])
def test_as_published_most_sequences_are_wrong(align: str, batch_size: int, architecture: str) -> None:
    """On ragged batches fewer than half of the sequences are the target's own."""
    assert exact_share(architecture, align=align, batch_size=batch_size) < 0.5


class Gains(Observer):
    """Keeps what the rows of each round gained, and what was drafted."""

    def __init__(self) -> None:
        self.rounds: list[RoundReport] = []

    def round(self, report: RoundReport) -> None:
        if not report.prefill:
            self.rounds.append(report)


def rounds(align: str, right: fakes.Right, new: int = 12, **options: Any) -> list[RoundReport]:
    """Return the decoding rounds of a batch of four whose drafts are right as told."""
    target, _ = pair("fake")
    gains, wanted = Gains(), asked(target, new)[:4]
    wanted = harness.requests([request.prompt_ids for request in wanted], new)
    drafter = fakes.ScriptedDrafter(harness.truth(target, wanted), right)
    options = {"align": align, "batch_size": 4, "draft_length": 4, "observers": [gains], **options}
    harness.check(harness.pipeline(target, drafter, **options), wanted)
    return gains.rounds
