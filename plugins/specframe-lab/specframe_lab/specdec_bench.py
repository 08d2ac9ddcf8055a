"""An engine for NVIDIA's specdec_bench: the model class that its runner drives, with batches of specframe behind it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from specframe.contracts.requests import Chunk, Request, Result
from specframe.errors import OptionError, PromptError
from specframe.pipeline import Pipeline
from specframe.plugins.recipe import PLAIN, Recipe
from specframe.text.sampling import Sampling

DRAFTERS = {"NONE": PLAIN, "NGRAM": "prompt-lookup"}
"""Drafters of the algorithms that take no checkpoint. The checkpoint of any other algorithm says what it drafts with."""
NO_END = -1
"""The end id of a runner that ignores the ends of sequences."""
OWN = {field.name for field in attrs.fields(Sampling)}
"""Sampling parameters by name."""


@attrs.define(eq=False)
class Turn:
    """A turn that is being decoded: the tokens of each round, and the moments at which they came."""

    request: Request | Result
    ended: asyncio.Event = attrs.Factory(asyncio.Event)
    steps: list[list[int]] = attrs.Factory(list)
    times: list[float] = attrs.Factory(lambda: [time.perf_counter()])
    fault: Exception | None = None

    def take(self, chunk: Chunk) -> None:
        """Take the tokens of a round."""
        self.steps.append(chunk.token_ids)
        self.times.append(time.perf_counter())
        if chunk.result:
            self.end(PromptError(chunk.result.error) if chunk.result.error else None)

    def end(self, fault: Exception | None) -> None:
        """Let go of who waits for the turn."""
        self.fault = fault
        self.ended.set()


class SpecframeModel:
    """A model of specdec_bench (``specdec_bench.models.Model``). Turns that are asked for together are decoded together.

    Args:
        model_dir: the target.
        max_concurrent_requests: rows decoded together.
        sampling_kwargs: parameters of :class:`specframe.Sampling`, such as ``temperature``.
        speculative_algorithm: NONE, NGRAM, or any other with a checkpoint, whose format decides the drafter.
        draft_model_dir: that checkpoint.
        speculative_num_steps: tokens drafted per round.
        more: options of :class:`specframe.Pipeline`, which win over those above, and what the runner passes to every engine.

    Raises:
        SpecframeError: one sentence on what cannot be found, loaded or combined.
    """

    def __init__(
        self,
        model_dir: str,
        max_concurrent_requests: int,
        sampling_kwargs: Mapping[str, Any],
        speculative_algorithm: str = "NONE",
        draft_model_dir: str | None = None,
        speculative_num_steps: int = 3,
        tensor_parallel_size: int = 1,
        moe_expert_parallel_size: int = 1,
        **more: Any,
    ) -> None:
        if max(tensor_parallel_size, moe_expert_parallel_size) > 1:
            raise OptionError(
                "specdec_bench: expected --tp_size 1 and --ep_size 1, since its runner is one process, got "
                f"{tensor_parallel_size} and {moe_expert_parallel_size}"
            )
        drafter = DRAFTERS.get(speculative_algorithm, draft_model_dir)
        if (drafter := more.get("drafter", drafter)) is None:
            raise OptionError(
                f"specdec_bench: {speculative_algorithm} expects --draft_model_dir, a checkpoint, got none"
            )
        options = {"batch_size": max_concurrent_requests, "draft_length": speculative_num_steps}
        given = {"target": model_dir, "drafter": drafter, "generation_config": "none"} | options
        told = ("trust_remote_code", "tokenizer_path", "speculative_num_draft_tokens")
        self.options = given | {name: value for name, value in more.items() if name not in told}
        if unknown := {*self.options} - {field.name for field in attrs.fields(Recipe)}:
            raise OptionError(
                f"specdec_bench: engine_args has {min(unknown)!r}: expected options of specframe.Pipeline"
            )
        self._sampling = sampling(sampling_kwargs)
        self.pipe = Pipeline(**self.options)
        self._numbers = itertools.count()
        self._asked: deque[Turn] = deque()
        self._turns: dict[int, Turn] = {}
        self._decoding: asyncio.Task[None] | None = None

    async def run(
        self, prompt_ids: list[int], max_length: int, end_id: int, request_id: Any = None, turn_id: Any = None
    ) -> dict[str, Any]:
        """Decode one turn.

        Returns:
            ``output_ids``: of one beam, the tokens of each round without the end; ``token_times``: the moment at which it was asked
            for, then one for each of these rounds; ``output_logits``: None.
        """
        turn = self._begun(prompt_ids, max_length, end_id)
        if self._decoding is None or self._decoding.done():
            self._decoding = asyncio.ensure_future(self._decode())
        await turn.ended.wait()
        if turn.fault:
            raise turn.fault
        steps, times = turn.steps, turn.times
        if steps and steps[-1][-1:] == [end_id]:
            steps[-1] = steps[-1][:-1]
        kept = [place for place, step in enumerate(steps) if step]
        moments = [times[0], *(times[place + 1] for place in kept)]
        return {"output_ids": [[steps[place] for place in kept]], "output_logits": None, "token_times": moments}

    def _begun(self, prompt_ids: list[int], max_length: int, end_id: int) -> Turn:
        """Return a turn that waits to be decoded."""
        index = next(self._numbers)
        settings = self.pipe.requests.setting(self._sampling, max_length)
        (request,) = self.pipe.requests.of(index, list(prompt_ids), max_length, settings)
        if isinstance(request, Request):
            stops = frozenset() if end_id == NO_END else request.stop_token_ids | {end_id}
            request = attrs.evolve(request, stop_token_ids=stops)
        turn = self._turns[index] = Turn(request)
        self._asked.append(turn)
        return turn

    def _requests(self) -> Iterator[list[Request | Result]]:
        """Yield what was asked for since; nothing while there is nothing new."""
        while True:
            yield [self._asked.popleft().request] if self._asked else []

    async def _decode(self) -> None:
        """Decode until all turns have ended. Between two chunks others may ask for more."""
        try:
            for chunk in self.pipe.stream_fed(self._requests()):
                self._turns[chunk.index].take(chunk)
                if chunk.result:
                    del self._turns[chunk.index]
                await asyncio.sleep(0)
        except Exception as fault:  # it is the answer to all turns under way, and the next ones begin anew
            self._asked.clear()
            while self._turns:
                self._turns.popitem()[1].end(fault)

    def get_serving_config(self) -> dict[str, Any]:
        """Return the options of the pipeline, which the runner writes with its figures."""
        recipe = attrs.asdict(self.pipe.recipe, recurse=False)
        return {name: value for name, value in recipe.items() if isinstance(value, str | int | float | None)}

    def stop(self) -> None:
        """Release the memory that is kept between runs."""
        self.pipe.close()


def sampling(given: Mapping[str, Any]) -> Sampling:
    """Return the sampling parameters; raise :class:`OptionError` for one that there is not."""
    parameters = {name: value for name, value in given.items() if (name, value) != ("beam_width", 1)}
    if unknown := [name for name in parameters if name not in OWN]:
        raise OptionError(
            f"specdec_bench: sampling_kwargs has {unknown[0]!r}: expected parameters of specframe.Sampling"
        )
    return Sampling(**parameters)
