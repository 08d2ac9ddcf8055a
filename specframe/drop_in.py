"""Batched speculative decoding inside transformers' own ``generate``."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from transformers import generation as hf
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specframe.errors import OptionError
from specframe.observers import Watcher
from specframe.pipeline import Pipeline
from specframe.plan import Plan
from specframe.stopping import Criteria
from specframe.types import Request, Result, RoundReport

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel
    from transformers.generation.streamers import BaseStreamer


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
    scores and logits are 0 there.

    Args:
        draft: a loaded draft model, a directory or hub id of one, or a drafter's name with options, such as ``"prompt-lookup"``.
        draft_length: tokens drafted per round, a draft-length policy's name or "auto", as :class:`specframe.Pipeline` takes it.
        align, accept, kv: strategies, as :class:`specframe.Pipeline` takes them.
        streamer: told the prompt's ids and then every round's; a list has one for each row. One streamer serves one row.

    Raises:
        OptionError: on the call, before any work, what ``generate`` was asked for and cannot be had here, by name.
    """

    @functools.cache
    def pipeline(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> Pipeline:
        on, precision = str(device), str(dtype)
        return Pipeline(model, draft, align, None, accept, "chain", kv, 1, draft_length, on, precision)

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
        with evaluating(model):
            pipe = pipeline(model, model.device, model.dtype)
            requests = requests_of(pipe, input_ids, prompts, logits_processor, stopping_criteria, generation_config)
            pipe.batch_size = len(requests)
            if generation_config.do_sample:
                pipe.seed = int(torch.randint(2**62, ()))
            kept = StepOutputs(generation_config)
            watching = [kept, *([Streaming(streamers, input_ids)] if streamers else [])]
            results = sorted(decodable(pipe.decode(requests, observers=watching)), key=lambda result: result.index)
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


def for_row(processor: Any, row: int) -> Any:
    """Return a processor as it treats one row of the batch it was made for."""
    if isinstance(processor, hf.PrefixConstrainedLogitsProcessor):
        allowed = processor._prefix_allowed_tokens_fn
        return hf.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(row, ids), num_beams=1)
    if isinstance(getattr(processor, "prompt_ignore_length", None), torch.Tensor):
        one = copy.copy(processor)
        one.prompt_ignore_length = processor.prompt_ignore_length[row : row + 1]
        return one
    return processor


def unpadded(input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> list[list[int]]:
    """Return each row's own ids, its left padding taken away.

    Raises:
        OptionError: padding that is not on the left, or positions other than a token's place in its row.
    """
    mask_BS = model_kwargs.get("attention_mask")
    mask_BS = torch.ones_like(input_ids) if mask_BS is None else mask_BS.to(input_ids.device)
    if mask_BS.shape != input_ids.shape:
        raise OptionError(
            f"attention_mask: expected one value for each of input_ids {tuple(input_ids.shape)}, got {tuple(mask_BS.shape)}"
        )
    real_BS = mask_BS.bool()
    if not (bool(real_BS[:, -1].all()) and bool((real_BS[:, 1:] >= real_BS[:, :-1]).all())):
        raise OptionError("attention_mask: expected rows padded on the left only, with at least one token each")
    positions_BS = model_kwargs.get("position_ids")
    expected_BS = (real_BS.cumsum(-1) - 1).where(real_BS, 0)
    if positions_BS is not None and not torch.equal(positions_BS.to(expected_BS).where(real_BS, 0), expected_BS):
        raise OptionError("position_ids: expected the place of each token in its row, counted from 0")
    rows, masks = input_ids.tolist(), real_BS.sum(1).tolist()
    return [row[len(row) - count :] for row, count in zip(rows, masks, strict=True)]


def requests_of(
    pipe: Pipeline,
    input_ids: torch.Tensor,
    prompts: list[list[int]],
    processors: hf.LogitsProcessorList,
    criteria: hf.StoppingCriteriaList,
    config: GenerationConfig,
) -> list[Request]:
    """Return a request per row, with what ``generate`` prepared for it."""
    width, device = input_ids.shape[1], pipe.target_model.device
    lengths = [one.max_length for one in criteria if isinstance(one, hf.MaxLengthCriteria)]
    new = min([config.max_length, *lengths]) - width
    context = getattr(pipe.target_model.config.get_text_config(), "max_position_embeddings", None)
    if context is not None and max(map(len, prompts)) + new > context:
        raise OptionError(
            f"max_new_tokens: the longest prompt has {max(map(len, prompts))} tokens: expected at most "
            f"{context - max(map(len, prompts))} new ones in the model's context of {context}, got {new}"
        )
    stops: set[int] = set()
    others = []
    for one in criteria:
        if isinstance(one, hf.EosTokenCriteria):
            stops.update(one.eos_token_id.tolist())
        elif not isinstance(one, hf.MaxLengthCriteria):
            others.append(one)
    requests = []
    for index, ids in enumerate(prompts):
        lead = tuple(input_ids[index, : width - len(ids)].tolist())
        own = [for_row(processor, index) for processor in processors]
        plan = Plan.split(own, greedy=not config.do_sample, lead=lead)
        checks = (Criteria(others, lead, device),) if others else ()
        requests.append(Request(index, pipe.encode(ids), new, frozenset(stops), plan, stream=index, stop_checks=checks))
    return requests


def decodable(results: Iterator[Result]) -> Iterator[Result]:
    """Yield results; raise :class:`OptionError` for a row that cannot be decoded, which is told before any other is."""
    for result in results:
        if result.error is not None:
            raise OptionError(f"row {result.index}: {result.error}")
        yield result


def streamers_of(given: BaseStreamer | list[BaseStreamer] | None, rows: int) -> list[BaseStreamer]:
    """Return one streamer for each row, or none."""
    if given is None:
        return []
    streamers = given if isinstance(given, list) else [given]
    if len(streamers) != rows:
        raise OptionError(f"streamer: expected one for each of {rows} rows, got {len(streamers)}")
    return streamers


class Streaming(Watcher):
    """Tells transformers' streamers what each row gains."""

    def __init__(self, streamers: list[BaseStreamer], input_ids: torch.Tensor) -> None:
        self._streamers = streamers
        for streamer, prompt in zip(streamers, input_ids.cpu(), strict=True):
            streamer.put(prompt[None])

    def round(self, report: RoundReport) -> None:
        """Put the tokens that this round gave."""
        _, tokens = report.verdict.host()
        for row, sequence in enumerate(report.sequences):
            streamer = self._streamers[sequence.request.index]
            for token in tokens[row, : report.gained[row]].tolist():
                streamer.put(torch.tensor([token]))
            if sequence.finished:
                streamer.end()


class StepOutputs(Watcher):
    """Keeps the target's logits and scores of every generated token, when ``generate`` was asked for them."""

    def __init__(self, config: GenerationConfig) -> None:
        wanted = config.return_dict_in_generate
        self._kinds = [kind for kind in ("scores", "logits") if wanted and getattr(config, f"output_{kind}")]
        self._kept: dict[str, dict[int, list[torch.Tensor]]] = {kind: defaultdict(list) for kind in self._kinds}

    def round(self, report: RoundReport) -> None:
        """Keep a float32 copy of what the gained tokens were chosen from."""
        for kind in self._kinds:
            given_BTV = report.scores_BTV if kind == "scores" else report.logits_BTV
            assert given_BTV is not None
            for row, sequence in enumerate(report.sequences):
                values_TV = given_BTV[row, : report.gained[row]].to(torch.float32, copy=True)
                self._kept[kind][sequence.request.index].append(values_TV)

    def steps(self, kind: str, rows: int, count: int) -> tuple[torch.Tensor, ...] | None:
        """Return one (B, V) tensor for each of ``count`` generated tokens, or None when they were not asked for."""
        if kind not in self._kinds:
            return None
        values = [torch.cat(self._kept[kind][row]) for row in range(rows)]
        padded = torch.nn.utils.rnn.pad_sequence(values)
        return tuple(padded[:count].unbind(0))


def output(
    input_ids: torch.Tensor, results: list[Result], config: GenerationConfig, kept: StepOutputs
) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """Return what ``generate`` returns: prompts and continuations, padded on the right."""
    longest = max(len(result.token_ids) for result in results)
    pad = config._pad_token_tensor
    new_BN = input_ids.new_full((len(results), longest), 0 if pad is None else int(pad))
    for row, result in enumerate(results):
        new_BN[row, : len(result.token_ids)] = torch.tensor(result.token_ids)
    sequences = torch.cat([input_ids, new_BN], dim=1)
    if not config.return_dict_in_generate:
        return sequences
    return GenerateDecoderOnlyOutput(
        sequences=sequences,  # type: ignore[arg-type]
        scores=kept.steps("scores", len(results), longest),  # type: ignore[arg-type]
        logits=kept.steps("logits", len(results), longest),  # type: ignore[arg-type]
    )
