"""The least a round could take: the bytes it must move, over the bandwidth that a plain copy reaches on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.devices import kinds
from specframe.observe.counts import RunReport


class Volume(Observer):
    """What decoding rounds read: how many there were, tokens drafted, and tokens whose keys and values were looked at."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again."""
        self.rounds = self.drafted = self.target_tokens = self.draft_tokens = 0

    def round(self, report: RoundReport) -> None:
        """Count a round that decoded."""
        if report.prefill:
            return
        cached = int(report.lengths.sum())
        self.rounds += 1
        self.drafted += report.draft.depth
        self.target_tokens += cached
        self.draft_tokens += cached * report.draft.depth

    def bytes_moved(self, target: PreTrainedModel, draft: PreTrainedModel) -> int:
        """Return the least bytes of all rounds: target weights once, draft weights per draft token, and what is cached."""
        return (
            self.rounds * weight_bytes(target)
            + self.drafted * weight_bytes(draft)
            + self.target_tokens * token_bytes(target)
            + self.draft_tokens * token_bytes(draft)
        )


def weight_bytes(model: Any) -> int:
    """Return the bytes of weights that a forward pass reads: all but an embedding that is not the head as well."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    total = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return total - (0 if head is embedding else embedding.numel() * embedding.element_size())


def token_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of one token's keys and values over all layers."""
    config = model.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * size * model.dtype.itemsize


def copy_bandwidth(device: torch.device, repeats: int = 7) -> float:
    """Return bytes per second, read and written together, of copying a tensor far larger than the caches: the median."""
    source = large(device)
    target = torch.empty_like(source)
    return 2 * source.numel() / median_seconds(lambda: target.copy_(source), device, repeats)


def read_bandwidth(device: torch.device, repeats: int = 7) -> float:
    """Return bytes per second of adding up a tensor far larger than the caches, which reads and hardly writes: the median."""
    source = large(device)
    numbers = source.view(torch.float32)
    return source.numel() / median_seconds(numbers.sum, device, repeats)


def large(device: torch.device) -> torch.Tensor:
    """Return a tensor far larger than a device's caches."""
    return torch.ones((1 << 31) if device.type == "cuda" else (1 << 28), dtype=torch.uint8, device=device)


def median_seconds(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the median seconds of a call, the device's work included; two calls before are not timed."""
    seconds = []
    for _ in range(repeats + 2):
        started = time.perf_counter()
        call()
        kinds.of(device).synchronise(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[2:])


def decoding_seconds(report: RunReport) -> float:
    """Return the seconds of a run's stages, prompt reading left out."""
    return sum(seconds for stage, seconds in report.stage_seconds.items() if stage != "prefill")
