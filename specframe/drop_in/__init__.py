"""Batched speculative decoding inside transformers' own ``generate``."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from transformers import generation as hf

from specframe.drop_in.kept import Kept, check
from specframe.drop_in.outputs import StepOutputs, output
from specframe.drop_in.rows import requests_of, unpadded
from specframe.drop_in.streams import Streaming, streamers_of
from specframe.errors import OptionError
from specframe.pipeline import Pipeline

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel
    from transformers.generation.streamers import BaseStreamer
    from transformers.generation.utils import GenerateDecoderOnlyOutput

TURN = threading.RLock()
"""Held by the call that decodes: how a model attends and its modes are set on the model, for one call at a time."""


def assisted(
    draft: Any,
    draft_length: Any = "auto",
    *,
    align: Any = "ragged",
    accept: Any = "auto",
    kv: Any = None,
    streamer: BaseStreamer | list[BaseStreamer] | None = None,
) -> Callable[..., torch.Tensor | GenerateDecoderOnlyOutput]:
    """Return what ``model.generate(**batch, custom_generate=...)`` takes: assisted generation for batches of any size.

    Greedy output is that of ``generate`` without an assistant, token for token; sampled output is distributed as it is, with
    random numbers that follow ``torch.manual_seed``. Rows that have ended are padded on the right, as ``generate`` does, and their
    scores and logits are 0 there. Calls from several threads take turns.

    Args:
        draft: a loaded draft model, a directory or hub id of one, or a drafter's name with options, such as ``"prompt-lookup"``.
        draft_length: tokens drafted per round, a draft-length policy's name or "auto", as :class:`specframe.Pipeline` takes it.
        align, accept, kv: strategies, as :class:`specframe.Pipeline` takes them.
        streamer: told the prompt's ids and then every round's; a list has one for each row. One streamer serves one row.

    Raises:
        SpecframeError: at once, a draft, draft length or strategy that cannot be had; on the call, before any work, what
            ``generate`` was asked for and cannot be had here, by name.
    """
    check(draft, draft_length, align, accept, kv)

    def pipeline(model: PreTrainedModel, draft: Any, length: Any) -> Pipeline:
        on, precision = str(model.device), str(model.dtype)
        return Pipeline(model, draft, align, None, accept, "chain", kv, 1, length, on, precision)

    pipelines = Kept(pipeline)

    def generate(
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: hf.LogitsProcessorList,
        stopping_criteria: hf.StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        refuse_unsupported(model, generation_config, logits_processor, model_kwargs)
        streamers = streamers_of(streamer, len(input_ids))
        prompts = unpadded(input_ids, model_kwargs)
        with TURN, evaluating(model), pipelines.lend(model, draft, draft_length) as pipe:
            if generation_config.do_sample:
                pipe.require_sampling("do_sample=True")
                pipe.seed = int(torch.randint(2**62, ()))
            requests = requests_of(pipe, input_ids, prompts, logits_processor, stopping_criteria, generation_config)
            pipe.batch_size = len(requests)
            kept = StepOutputs(generation_config)
            watching = [kept, *([Streaming(streamers, input_ids)] if streamers else [])]
            results = sorted(pipe.decode(requests, observers=watching), key=lambda result: result.index)
        return output(input_ids, results, generation_config, kept)

    return generate


@contextlib.contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Put a model in evaluation mode inside the block, and each of its modules back in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def refuse_unsupported(
    model: PreTrainedModel, config: GenerationConfig, processors: hf.LogitsProcessorList, model_kwargs: dict[str, Any]
) -> None:
    """Raise :class:`OptionError` naming what cannot be had."""
    cache = model_kwargs.get("past_key_values")
    known = {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep"}
    mode = config.get_generation_mode()
    asked = {
        "an encoder-decoder model": model.config.is_encoder_decoder,
        f"{mode.value} (num_beams={config.num_beams})": mode not in DECODING,
        "inputs_embeds": "inputs_embeds" in model_kwargs,
        "past_key_values that hold tokens already": cache is not None and cache.get_seq_length() > 0,
        "use_cache=False": config.use_cache is False,
        "prompt_lookup_num_tokens (give assisted('prompt-lookup') instead)": config.prompt_lookup_num_tokens,
        "assistant_early_exit": config.assistant_early_exit,
        "output_attentions": config.output_attentions,
        "output_hidden_states": config.output_hidden_states,
        **{name: model_kwargs[name] is not None for name in sorted(model_kwargs.keys() - known)},
    }
    asked |= {type(one).__name__: isinstance(one, STATEFUL) for one in processors}
    if unsupported := [name for name, wanted in asked.items() if wanted]:
        raise OptionError(f"assisted generation in batches does not support {', '.join(unsupported)}")


DECODING = (hf.GenerationMode.GREEDY_SEARCH, hf.GenerationMode.SAMPLE, hf.GenerationMode.ASSISTED_GENERATION)
"""What ``generate`` may be set to do."""

STATEFUL = (
    hf.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    hf.SynthIDTextWatermarkLogitsProcessor,
    hf.EncoderRepetitionPenaltyLogitsProcessor,
    hf.EncoderNoRepeatNGramLogitsProcessor,
)
"""Processors that count on being called once per generated token, in order, or with all rows at once."""
