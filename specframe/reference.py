"""The reference decoder, against which every result is tested: target only, one sequence, no speculation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator

import torch
from transformers import PreTrainedModel

from specframe.devices import kinds
from specframe.model import current_numerics
from specframe.model.positions import context_length
from specframe.model.twin import twin
from specframe.models.own_cache import OwnCache


@torch.inference_mode()
def reference_tokens(
    model: PreTrainedModel,
    prompt_ids: list[int],
    processors: Iterable[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = (),
    rounded: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Iterator[int]:
    """Yield the target's own greedy continuation of one prompt, up to the end of the model's context.

    The prompt is read in one pass. Then one token at a time is fed, when the one after it is asked for. A token's position is the
    number of tokens before it. The cache keeps the tokens before a sliding window, too: a key then lies in the slot of its
    position, as ``bitwise`` expects.

    Args:
        model: the target, in evaluation mode.
        prompt_ids: at least one token id.
        processors: the logits processors of transformers that scores go through, each called with all tokens so far, (1, L), and
            the scores, float32 (1, V).
        rounded: what a KV backend makes of keys and values (B, H, T, D), see
            :meth:`specframe.contracts.cache.RoundingBackend.rounded`, or None for nothing.
    """
    context = context_length(model.config.get_text_config()) or 2**31
    if current_numerics.are_active():
        model = twin(model)  # states are kept outside of it
    alone, feeding = OwnCache(model, whole=True, rounded=rounded), current_numerics.fed_alone(model)
    fed, generated = prompt_ids, list[int]()
    for _ in range(context - len(prompt_ids)):
        start = len(prompt_ids) + len(generated) - len(fed)
        positions = torch.arange(start, start + len(fed), device=model.device)
        ids = torch.tensor([fed], device=model.device)
        with kinds.of(model.device).any_shape(), feeding(ids):
            logits = alone.feed(ids, positions[None])
        scores_1V = logits[:, -1]
        for processor in processors:
            scores_1V = processor(torch.tensor([prompt_ids + generated], device=model.device), scores_1V.float())
        generated.append(int(scores_1V[0].argmax()))
        yield generated[-1]
        fed = generated[-1:]


def reference_decode(
    model: PreTrainedModel,
    prompt_ids: list[int],
    max_new_tokens: int,
    stop_token_ids: Collection[int] = (),
    processors: Iterable[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = (),
    rounded: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> list[int]:
    """Return the target's own greedy continuation of one prompt, see :func:`reference_tokens`.

    Args:
        model: the target, in evaluation mode.
        prompt_ids: at least one token id.
        max_new_tokens: most tokens to generate. A stop id or the end of the model's context ends the continuation earlier.
        stop_token_ids: ids that end the continuation. The stop token is part of the result.
        processors: as of :func:`reference_tokens`.
        rounded: as of :func:`reference_tokens`.
    """
    generated = list[int]()
    for token in itertools.islice(reference_tokens(model, prompt_ids, processors, rounded), max_new_tokens):
        generated.append(token)
        if token in stop_token_ids:
            break
    return generated
