"""What the loop costs by itself: the time outside of the models, and the memory of prompts that wait."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import torch
from contenders import Models
from transformers import PreTrainedModel

from specframe import Pipeline
from specframe.observe.counts import RunReport


class ModelClock:
    """Seconds spent inside of the models' own forward passes, and how many there were.

    On CUDA it is the device's time between two events, read when it is asked for.
    """

    def __init__(self, *models: PreTrainedModel) -> None:
        self._cuda = models[0].device.type == "cuda"
        self._marks: list[Any] = []
        self._hooks = [
            hook
            for model in models
            for hook in (model.register_forward_pre_hook(self._mark), model.register_forward_hook(self._mark))
        ]

    def reset(self) -> None:
        """Start again."""
        self._marks.clear()

    def close(self) -> None:
        """Leave the models as they were."""
        for hook in self._hooks:
            hook.remove()

    def own_share(self, report: RunReport) -> float | None:
        """Return the share of a run's time spent outside of the models, or None when not all of their passes were seen.

        Passes that a CUDA graph replays are not. Before its first round a run may feed a token to find shapes: passes that were
        not counted come first and are left out.
        """
        counted = report.target_forwards + report.draft_forwards
        if len(self._marks) < 2 * counted or not report.seconds:
            return None
        marks = self._marks[len(self._marks) - 2 * counted :]
        starts, ends = marks[::2], marks[1::2]
        if self._cuda:
            torch.cuda.synchronize()
            inside = sum(a.elapsed_time(b) for a, b in zip(starts, ends, strict=True)) / 1000
        else:
            inside = sum(b - a for a, b in zip(starts, ends, strict=True))
        return 1 - inside / report.seconds

    def _mark(self, *_: Any) -> None:
        if not self._cuda:
            self._marks.append(time.perf_counter())
            return
        if not torch.cuda.is_current_stream_capturing():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)


def queue_memory(models: Models, prompts: list[list[int]], counts: tuple[int, int] = (16, 1000)) -> dict[str, float]:
    """Return what it takes to have prompts wait: bytes on the host and of KV caches, for a few and for many prompts.

    Looked at when the first prompt is done and nearly all others still wait.
    """
    figures: dict[str, float] = {}
    for count in counts:
        queue = [prompts[number % len(prompts)] for number in range(count)]
        pipe = Pipeline(models.target, models.draft, batch_size=8, draft_length=4, tokenizer=models.tokenizer)
        tracemalloc.start()
        stream = pipe.as_completed(queue, max_new_tokens=4)
        next(iter(stream))
        figures[f"host_bytes_{count}"] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        stream.close()  # type: ignore[attr-defined]
        figures[f"kv_bytes_{count}"] = pipe.report.peak_kv_bytes
    few, many = counts
    added = figures[f"host_bytes_{many}"] - figures[f"host_bytes_{few}"]
    return figures | {"host_bytes_per_waiting_prompt": round(added / (many - few), 1)}
