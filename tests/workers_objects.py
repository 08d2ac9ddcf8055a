"""Processors and criteria that go to worker processes, which import this module."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from transformers import LogitsProcessor, StoppingCriteria


class Raising(LogitsProcessor):
    """Raises an error, in a worker and elsewhere."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        raise ValueError("no such thing")


class Deadly(LogitsProcessor):
    """Kills the process that it is called in, unless that is the one that made it."""

    def __init__(self) -> None:
        self.spared = os.getpid()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        if os.getpid() != self.spared:
            os.kill(os.getpid(), signal.SIGKILL)
        return scores


class After(StoppingCriteria):
    """Ends a sequence at a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length, device=input_ids.device)
