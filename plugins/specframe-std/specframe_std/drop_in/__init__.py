"""Batched speculative decoding inside transformers' own ``generate``."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch

from specframe.drop_in import Assisted
from specframe.pipeline import Pipeline
from specframe.plugins.registry import registry
from specframe.value_checks import flag
from specframe_std.drop_in.call import Call
from specframe_std.drop_in.call_rows import requests_of
from specframe_std.drop_in.outputs import StepOutputs, output
from specframe_std.drop_in.pipeline_cache import CachedPipeline, check
from specframe_std.drop_in.step_criteria import StepCriteria
from specframe_std.drop_in.streams import Sink, sink_of
from specframe_std.drop_in.undrafted_calls import decode_plainly, obstacles

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
    from transformers.generation.streamers import BaseStreamer
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    from specframe.observe.counts import RunReport

TURN = threading.RLock()
"""Lock held while a call decodes, since the attention backend and train/eval mode are set on the model itself."""


class DropIn:
    """The decoding of calls of ``generate`` with drafts: the function that ``specframe.assisted`` returns.

    Args:
        draft, draft_length, streamer: as ``specframe.assisted`` takes them.
        keep_cache: keep the caches for the next call.
        options: others of the pipeline, by name.
    """

    def __init__(self, draft: Any, draft_length: Any, streamer: Any, keep_cache: bool, options: dict[str, Any]) -> None:
        self.composition = check(draft, draft_length, options)
        self._draft, self._length, self._streamer, self._options = draft, draft_length, streamer, options
        self._pipelines = CachedPipeline(self._pipeline, flag("keep_cache", keep_cache))
        self.report: RunReport | None = None

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        """Decode a call of ``generate``."""
        call = Call(model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs)
        sink = sink_of(self._streamer, call)
        with sink or contextlib.nullcontext(), TURN:
            self.report = None
            call.require_decoding(sink is not None)
            if why := obstacles(call):
                return decode_plainly(call, why, sink)
            with self._pipelines.lend(model, *(looked_up(call) or (self._draft, self._length))) as pipe:
                made = decode_drafted(call, pipe, sink)
                self.report = pipe.report
                return made

    def close(self) -> None:
        """Release the models and caches of the latest call."""
        with TURN:
            self._pipelines.close()

    def _pipeline(self, model: PreTrainedModel, draft: Any, length: Any) -> Pipeline:
        place: dict[str, Any] = {"device": str(model.device), "dtype": str(model.dtype)}
        return Pipeline(model, draft, **self._options, **place, draft_length=length, generation_config=None)


def assisted(
    draft: Any,
    draft_length: Any,
    *,
    streamer: BaseStreamer | list[BaseStreamer] | None,
    keep_cache: bool,
    **options: Any,
) -> Assisted:
    """Return a function for ``model.generate(custom_generate=...)``, as ``specframe.assisted`` does."""
    return DropIn(draft, draft_length, streamer, keep_cache, options)


def looked_up(call: Call) -> tuple[str, int] | None:
    """Return the drafter and the draft length of a call that asks for prompt lookup, else None."""
    if not call.config.prompt_lookup_num_tokens:
        return None
    drafter, ngram = registry().default("prompt lookup"), call.config.max_matching_ngram_size
    return f"{drafter},ngram={ngram}" if ngram else drafter, call.config.prompt_lookup_num_tokens


def decode_drafted(call: Call, pipe: Pipeline, sink: Sink | None) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """Decode a call with a pipeline."""
    if call.config.do_sample:
        pipe.requests.require_sampling("do_sample=True")
        pipe.seed = int(torch.randint(2**62, ()))
    kept = StepOutputs(call.config)
    steps = StepCriteria(call, kept, sink) if call.in_steps else None
    requests = requests_of(pipe, call, steps)
    pipe.batch_size = len(requests)
    watching = [one for one in (kept, steps or sink) if one is not None]
    results = sorted(pipe.decode(requests, observers=watching), key=lambda result: result.index)
    return output(call, steps.cut(results) if steps else results, kept)
