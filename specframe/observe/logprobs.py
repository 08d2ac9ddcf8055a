"""Log-probabilities of committed tokens, from the target's logits.

Shape letters: A rows that ask for log-probabilities, T tokens of a round, N most likely tokens, B K V as elsewhere.
"""

from __future__ import annotations

import weakref

import torch

from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.contracts.round import Logprobs as Values
from specframe.contracts.round import Sequence
from specframe.devices.kinds import constant
from specframe.devices.out_of_memory import with_room

Part = tuple[torch.Tensor, ...]
"""Values of one row in one round, on the device: (T,) of its tokens, (T, N) of the most likely tokens at each, and their ids."""


class Logprobs(Observer):
    """Observer that keeps log-probabilities for the sequences that ask for them.

    They stay on the device until their sequence ends or is streamed, so that a round needs no further synchronisation. Where the
    device has no memory for them, they are computed on the host. Those of a sequence that was aborted go with it.
    """

    def __init__(self) -> None:
        self._parts: dict[int, list[Part]] = {}
        """By the identity of the request, which several sequences may have, one after the other."""

    def round(self, report: RoundReport) -> None:
        """Keep the values of the tokens gained in this round."""
        asking = [row for row, sequence in enumerate(report.sequences) if sequence.request.logprobs is not None]
        if not asking or report.logits_BTV is None:
            return
        most = max(report.sequences[row].request.logprobs or 0 for row in asking)

        def values(logits_BTV: torch.Tensor, tokens_BT: torch.Tensor) -> tuple[torch.Tensor, ...]:
            asking_A = constant(tuple(asking), logits_BTV.device)
            logprobs_ATV = logits_BTV[asking_A].float().log_softmax(-1)
            chosen_AT = logprobs_ATV.gather(2, tokens_BT[asking_A][..., None])[..., 0]
            return chosen_AT, *logprobs_ATV.topk(min(most, logprobs_ATV.shape[-1]), dim=-1)

        found = with_room(values, report.logits_BTV, report.acceptance.tokens_BT)
        for place, row in enumerate(asking):
            gained = int(report.gained[row])
            self._of(report.sequences[row].request).append(tuple(one[place, :gained] for one in found))

    def _of(self, request: Request) -> list[Part]:
        """Return the values of a request, which go with it."""
        if (key := id(request)) not in self._parts:
            self._parts[key] = []
            weakref.finalize(request, self._parts.pop, key, None)
        return self._parts[key]

    def take(self, sequence: Sequence) -> Values:
        """Return a finished sequence's log-probabilities and those of its most likely tokens, and forget them."""
        count, parts = sequence.request.logprobs, self._parts.pop(id(sequence.request), [])
        if sequence.logprobs is not None:
            return sequence.logprobs
        if count is None or not parts:
            return None, None
        chosen_T, top_TN, top_ids_TN = (list(several) for several in zip(*parts, strict=True))
        chosen = concatenate(chosen_T).tolist()
        if not count:
            return chosen, None
        values = concatenate([one[:, :count] for one in top_TN]).tolist()
        ids = concatenate([one[:, :count] for one in top_ids_TN]).tolist()
        return chosen, [dict(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True)]


def concatenate(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return tensors one after the other: on their device, or on the host where some are there or the device has no memory."""
    if len({tensor.device for tensor in tensors}) > 1:
        tensors = [tensor.cpu() for tensor in tensors]
    return with_room(lambda *parts: torch.cat(parts), *tensors)
