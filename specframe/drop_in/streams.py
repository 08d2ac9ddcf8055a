"""Streamers of transformers, told what each row gains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe.errors import OptionError
from specframe.observers import Watcher
from specframe.types import RoundReport

if TYPE_CHECKING:
    from transformers.generation.streamers import BaseStreamer


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
