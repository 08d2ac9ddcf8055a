"""The engine for NVIDIA's specdec_bench, under a stand-in of its runner: concurrent requests of several turns."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from specframe_lab.specdec_bench import SpecframeModel

from specframe.errors import OptionError, PromptError
from specframe.pipeline import Pipeline

QUESTIONS = [["import os", "import sys"], ["class A:"], ["x = [", "and", "or"]]
NEW = 8


@pytest.fixture(scope="module")
def model() -> SpecframeModel:
    """The embedded pair, as the runner makes an engine."""
    told = {"trust_remote_code": False, "tokenizer_path": "tiny", "speculative_num_draft_tokens": 8}
    return SpecframeModel(
        "tiny", 2, {"temperature": 0, "beam_width": 1}, "DRAFT_TARGET", "tiny-draft", speculative_num_steps=4, **told
    )


class Runner:
    """Runs all turns of requests as the benchmark's loop does, several requests at once, and keeps each turn's output."""

    def __init__(self, model: Any, concurrency: int, end_id: int) -> None:
        self.model, self.end_id, self.semaphore = model, end_id, asyncio.Semaphore(concurrency)
        self.outputs: dict[tuple[int, int], dict[str, Any]] = {}
        self.prompts: dict[tuple[int, int], list[int]] = {}

    async def request(self, number: int, turns: list[str]) -> None:
        messages = []
        async with self.semaphore:
            for turn, text in enumerate(turns):
                messages.append({"role": "user", "content": text})
                tokenizer = self.model.pipe.tokenizer
                ids = list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
                output = await self.model.run(ids, NEW, self.end_id, request_id=number, turn_id=turn)
                self.prompts[number, turn], self.outputs[number, turn] = ids, output
                flat = [token for step in output["output_ids"][0] for token in step]
                messages.append({"role": "assistant", "content": tokenizer.decode(flat)})

    def run(self, questions: list[list[str]]) -> None:
        async def loop() -> None:
            await asyncio.gather(*(self.request(*numbered) for numbered in enumerate(questions)))

        asyncio.run(loop())


def test_turns_of_concurrent_requests(model: SpecframeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn has plain decoding's tokens, by rounds with a moment for each; a turn that is asked for joins the others."""
    runner, begun, stream_fed = Runner(model, 3, end_id=0), [], Pipeline.stream_fed
    monkeypatch.setattr(Pipeline, "stream_fed", lambda *given: begun.append(0) or stream_fed(*given))
    runner.run(QUESTIONS)
    assert sorted(runner.outputs) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    plain = Pipeline(drafter="none")
    alone = plain.generate([*runner.prompts.values()], NEW)
    truth = {key: result.token_ids for key, result in zip(runner.prompts, alone, strict=True)}
    for key, output in runner.outputs.items():
        (steps,) = output["output_ids"]
        assert [token for step in steps for token in step] == truth[key]
        assert len(output["token_times"]) == len(steps) + 1
        assert output["token_times"] == sorted(output["token_times"])
        assert all(steps)
    assert max(len(step) for output in runner.outputs.values() for step in output["output_ids"][0]) > 1
    assert len(begun) == 1
    json.dumps(model.get_serving_config())


def test_the_end_is_left_out(model: SpecframeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends with the runner's end id, which is no part of it; with -1 it goes on past the target's own end."""
    ids = list(model.pipe.tokenizer("import os").input_ids)
    found = asyncio.run(model.run(ids, NEW, -1))["output_ids"][0]
    flat = [token for step in found for token in step]
    assert len(flat) == NEW
    end = flat[3]
    output = asyncio.run(model.run(ids, NEW, end))
    (steps,) = output["output_ids"]
    assert [token for step in steps for token in step] == flat[: flat.index(end)]
    assert len(output["token_times"]) == len(steps) + 1
    monkeypatch.setattr(model.pipe.requests, "_stops", frozenset({end}))
    assert asyncio.run(model.run(ids, NEW, -1))["output_ids"] == [found]


def test_faults_are_told_to_who_asked(model: SpecframeModel) -> None:
    """A prompt that cannot be decoded fails alone; an engine that breaks fails all turns under way, and the next one is decoded."""

    async def both() -> list[Any]:
        asked = asyncio.gather(model.run([], NEW, -1), model.run([5, 6], NEW, -1), return_exceptions=True)
        return await asyncio.wait_for(asked, 20)

    refused, answered = asyncio.run(both())
    assert isinstance(refused, PromptError)
    assert answered["output_ids"][0]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Pipeline, "stream_fed", lambda *given: iter([None]))
        broken = asyncio.run(both())
    assert [type(one) for one in broken] == [AttributeError, AttributeError]
    assert asyncio.run(model.run([5, 6], NEW, -1))["output_ids"] == answered["output_ids"]
    model.stop()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"tensor_parallel_size": 8},
            "expected --tp_size 1 and --ep_size 1, since its runner is one process, got 8 and 1",
        ),
        ({"speculative_algorithm": "EAGLE3"}, "EAGLE3 expects --draft_model_dir, a checkpoint, got none"),
        ({"sampling_kwargs": {"beams": 2}}, "sampling_kwargs has 'beams'"),
        ({"max_model_len": 2048}, "engine_args has 'max_model_len': expected options of specframe.Pipeline"),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(options: dict[str, Any], words: str) -> None:
    """Before a model is loaded."""
    with pytest.raises(OptionError, match=f"^specdec_bench: .*{words}"):
        SpecframeModel("tiny", **{"max_concurrent_requests": 1, "sampling_kwargs": {}, **options})
