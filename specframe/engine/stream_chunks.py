"""The text and tokens that each round adds to each continuation."""

from __future__ import annotations

from collections.abc import Iterator

from specframe.contracts.reports import Progress
from specframe.contracts.requests import Chunk
from specframe.contracts.round import Sequence
from specframe.engine.result_factory import ResultFactory
from specframe.text.stopping import stop_strings
from specframe.text.streaming import TextStream


class Chunks:
    """Makes chunks of what rounds report; ``results`` makes the results of sequences that have finished."""

    def __init__(self, results: ResultFactory) -> None:
        self._results = results
        self._texts: dict[tuple[int, int], TextStream] = {}

    def of(self, progress: Progress) -> Iterator[Chunk]:
        """Yield a chunk for every row of a round; a sequence's last chunk has its result."""
        for sequence, ids in zip(progress.sequences, progress.tokens, strict=True):
            key = sequence.request.key
            text = self._texts.get(key) or self._texts.setdefault(key, self._begun(sequence))
            piece = text.put(ids, sequence.finished)
            if sequence.finished:
                self.forget(sequence)
            yield Chunk(*key, piece, ids, self._results.of(sequence) if sequence.finished else None)

    def _begun(self, sequence: Sequence) -> TextStream:
        return TextStream(self._results.tokenizer, stop_strings(sequence.request.stop_checks))

    def forget(self, sequence: Sequence) -> None:
        """Forget the text of a sequence that has ended."""
        self._texts.pop(sequence.request.key, None)
