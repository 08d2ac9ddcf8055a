"""What looks rows up: the project's own suffixes, or the trees of Arctic Inference.

Arrays end with their shape: B rows of a batch, S places.
"""

from __future__ import annotations

import importlib
import itertools
import weakref
from array import array
from typing import Any, Protocol

import numpy as np

from specframe.contracts.round import Batch, Sequence
from specframe.errors import OptionError
from specframe_std.drafters.suffix.corpus import Corpus
from specframe_std.drafters.suffix.own_text import OwnText
from specframe_std.drafters.suffix.speculation import Most, Reach, Speculation

PACKAGE = "arctic-inference"
"""The distribution with the trees of the method's authors."""


class SuffixEngine(Protocol):
    """Looks rows up in their own texts and in earlier responses."""

    def find(self, batch: Batch, rows: list[int], most: list[Most]) -> list[Speculation]:
        """Return what may follow each of some rows, up to ``most`` of each."""

    def learn(self, response: list[int]) -> None:
        """Take an earlier response."""

    def end(self, sequence: Sequence, complete: bool) -> None:
        """Take the response of a sequence that has ended, if it is ``complete``, and forget the sequence."""


def those(values_B: np.ndarray, rows: list[int]) -> np.ndarray:
    """Return some rows of an array, in their order, without a copy if they are all."""
    return values_B if len(rows) == len(values_B) else values_B[rows]


class Own:
    """Rows' own texts without a tree, and one tree for the responses of sequences that have ended."""

    def __init__(self, reach: Reach, requests: int) -> None:
        self._reach = reach
        self._own, self._corpus = OwnText(reach), Corpus(reach, requests)

    def find(self, batch: Batch, rows: list[int], most: list[Most]) -> list[Speculation]:
        """Return what may follow each of some rows; of equal scores that of the row's own text."""
        return self.look_up(those(batch.tokens, rows), those(batch.lengths, rows), most)

    def look_up(self, tokens_RS: np.ndarray, lengths_R: np.ndarray, most: list[Most]) -> list[Speculation]:
        """Return what may follow each of some texts, whose tokens, of 64 bits, and numbers of tokens are given.

        Drafts that responses have as a whole, for certain, come first. A row's own text has none: its end is an occurrence that
        nothing follows.
        """
        if not len(self._corpus):
            return self._own.find(tokens_RS, lengths_R, most)
        starts_R = np.maximum(lengths_R - self._reach.depth, 0)
        spans = zip(starts_R.tolist(), lengths_R.tolist(), strict=True)
        contexts = (array("q", tokens_RS[row, start:end].tobytes()) for row, (start, end) in enumerate(spans))
        places = [self._corpus.places(context) for context in contexts]
        whole = [self._corpus.whole(one, asked) for one, asked in zip(places, most, strict=True)]
        found = {row: one for row, one in enumerate(whole) if one is not None}
        rest = [row for row in range(len(most)) if row not in found]
        if rest:
            own = self._own.find(those(tokens_RS, rest), those(lengths_R, rest), [most[row] for row in rest])
            for row, one in zip(rest, own, strict=True):
                found[row] = self._corpus.find(places[row], most[row], one.score) or one
        return [found[row] for row in range(len(most))]

    def learn(self, response: list[int]) -> None:
        """Take an earlier response."""
        self._corpus.add(response)

    def end(self, sequence: Sequence, complete: bool) -> None:
        """Take the response of a sequence that has ended."""
        if complete:
            self._corpus.add(sequence.token_ids)


class Arctic:
    """``SuffixDecodingCache`` of Arctic Inference. Responses are looked up in while they grow, by other rows too."""

    def __init__(self, reach: Reach, requests: int) -> None:
        try:
            module = importlib.import_module("arctic_inference.suffix_decoding")
        except ImportError as error:
            raise OptionError(
                f"engine: 'arctic' needs the package {PACKAGE}, which is not installed ({error})"
            ) from error
        self._reach, self._numbers = reach, itertools.count()
        self._cache: Any = module.SuffixDecodingCache(reach.depth, requests)
        self._known: weakref.WeakKeyDictionary[Sequence, tuple[int, int]] = weakref.WeakKeyDictionary()
        """The number of each sequence, and how many of its tokens are in its tree."""

    def find(self, batch: Batch, rows: list[int], most: list[Most]) -> list[Speculation]:
        """Return what may follow each of some rows."""
        found = []
        for row, one in zip(rows, most, strict=True):
            ids = batch.tokens[row, : int(batch.lengths[row])].astype(np.int32)
            number = self._follow(batch.sequences[row], ids)
            reach = self._reach
            context = ids[-reach.depth :]
            draft = self._cache.speculate(
                number, context, one.nodes, reach.factor, reach.offset, reach.least, use_tree_spec=reach.tree
            )
            match = draft.match_len if draft.token_ids else 0
            whole = Speculation(draft.token_ids, draft.parents, draft.probs, draft.score, match)
            found.append(whole.within(one.depth))
        return found

    def _follow(self, sequence: Sequence, ids: np.ndarray) -> int:
        """Put a sequence's new tokens into the trees and return its number."""
        if sequence not in self._known:
            number, count = next(self._numbers), len(sequence.request.prompt_ids)
            self._cache.start_request(number, ids[:count])
            weakref.finalize(sequence, self._stop, number)
            self._known[sequence] = number, count
        number, count = self._known[sequence]
        if len(ids) > count:
            self._cache.add_active_response(number, ids[count:])
            self._known[sequence] = number, len(ids)
        return number

    def _stop(self, number: int) -> None:
        if number in self._cache.active_requests:
            self._cache.stop_request(number)

    def learn(self, response: list[int]) -> None:
        """Take an earlier response."""
        number = next(self._numbers)
        self._cache.start_request(number, np.zeros(0, np.int32))
        self._cache.add_active_response(number, np.array(response, np.int32))
        self._stop(number)

    def end(self, sequence: Sequence, complete: bool) -> None:
        """Add the last tokens of a sequence that has ended, or take all of them back."""
        if sequence not in self._known:
            return
        number = (
            self._follow(sequence, np.array(sequence.start_ids, np.int32)) if complete else self._known[sequence][0]
        )
        self._stop(number)
        if not complete and number in self._cache.cached_requests:
            self._cache.evict_cached_response(number)


ENGINES: dict[str, type[Own | Arctic]] = {"own": Own, "arctic": Arctic}
