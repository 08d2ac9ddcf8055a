"""The text and tokens that each round adds to each continuation: text in whole characters."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from specframe.contracts.reports import Progress
from specframe.contracts.requests import Chunk
from specframe.contracts.round import Sequence
from specframe.engine.result_factory import ResultFactory
from specframe.text.stopping import UNFINISHED, StopStrings, stop_strings, text_before, text_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEAD = 8
"""Known tokens decoded again before new ones, since some tokenizers decode the first tokens of a text differently."""


class TextStream:
    """Text of one continuation in chunks. All chunks joined are the text of all its tokens.

    Args:
        tokenizer: the target's tokenizer, or None if there is no text.
        stop: the stop strings. Text that may begin a stop string is held back until the next tokens decide.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, stop: StopStrings | None = None) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._ids: list[int] = []
        self._told = ""
        self._known, self._text = 0, ""
        """Number of first tokens that end with a whole character, and their text."""

    def put(self, token_ids: Rows[int], last: bool) -> str:
        """Take the next tokens and return the text that is now certain; after the last tokens, the rest of the text."""
        self._ids += token_ids
        if last:
            text = text_before(self._tokenizer, self._ids, self._stop)
        else:
            text = self._decoded().rstrip(UNFINISHED)
            text = text[: len(text) - (self._stop.begun(text) if self._stop else 0)]
        if not text.startswith(self._told):
            return ""  # the tokenizer decodes earlier tokens differently now
        piece, self._told = text[len(self._told) :], text
        return piece

    def _decoded(self) -> str:
        """Return the text of the tokens so far: the known text and the latest tokens' text."""
        leads = range(self._known - LEAD, 0, -LEAD)
        start = next((n for n in leads if text_of(self._tokenizer, self._ids[n : self._known])), 0)
        before, recent = (text_of(self._tokenizer, self._ids[start:end]) for end in (self._known, None))
        if recent.startswith(before):
            text = self._text + recent[len(before) :]
        else:  # the latest tokens change the text of the tokens before them
            text = text_of(self._tokenizer, self._ids)
        if not text.endswith(UNFINISHED):
            self._known, self._text = len(self._ids), text
        return text


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
