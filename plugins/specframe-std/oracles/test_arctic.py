"""The project's own suffixes compared with the trees of Arctic Inference, by the method's authors."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
from arctic_inference.suffix_decoding import SuffixDecodingCache
from specframe_std.drafters.suffix.corpus import Corpus
from specframe_std.drafters.suffix.own_text import OwnText
from specframe_std.drafters.suffix.speculation import Most, Speculation
from specframe_std.drafters.suffix.suffix_drafter import SuffixDrafter
from specframe_testing.conformance import DrafterSuite
from suffix_counting import counted, reach_of, same, text
from test_suffix import batch_of, proposed

from specframe.contracts.drafts import Budget


@pytest.mark.parametrize("trees", [False, True], ids=["chain", "tree"])
def test_the_same_as_arctic_inference(trees: bool) -> None:
    """Token ids, parents, probabilities, score and match length are those of Arctic Inference.

    Of equally frequent tokens it takes one by the history of its lists: chains that have met such a choice are not compared.
    """
    compared = 0
    for seed in range(150):
        draw = random.Random(seed)
        reach, tokens = reach_of(draw, trees), draw.choice([2, 3, 20])
        cache, own, corpus = SuffixDecodingCache(reach.depth), OwnText(reach), Corpus(reach, 100)
        earlier = list[list[int]]()
        for number in range(4):
            prompt, response = text(draw, draw.randrange(1, 40), tokens), text(draw, draw.randrange(1, 40), tokens)
            row, most = prompt + response, draw.choice([1, 4, 16])
            cache.start_request(number, np.array(row, np.int32))
            theirs = cache.speculate(
                number, np.array(row, np.int32), most, reach.factor, reach.offset, reach.least, trees
            )
            (found,) = own.find(np.array([row]), np.array([len(row)]), [Most(most, 64)])
            found = corpus.find(corpus.places(array("q", row[-reach.depth :])), Most(most, 64), found.score) or found
            tied = not trees and any(counted(texts, row, Most(most, 64), reach)[1] for texts in ([row], earlier))
            if not tied:
                expected = Speculation(theirs.token_ids, theirs.parents, theirs.probs, theirs.score, theirs.match_len)
                assert same(found, expected, trees)
                compared += bool(found.tokens)
            cache.stop_request(number)
            learn(cache, number, response)
            corpus.add(response)
            earlier.append(response)
    assert compared > 50


def learn(cache: object, number: int, response: list[int]) -> None:
    """Have Arctic Inference take a response whose prompt is in no tree."""
    cache.start_request(-1 - number, [])  # type: ignore[attr-defined]
    cache.add_active_response(-1 - number, np.array(response, np.int32))  # type: ignore[attr-defined]
    cache.stop_request(-1 - number)  # type: ignore[attr-defined]


class TestArctic(DrafterSuite):
    """The suite with the trees of Arctic Inference."""

    def make(self) -> str:
        """Return the drafter."""
        return "suffix,engine=arctic"

    def test_it_finds_what_the_own_engine_finds(self) -> None:
        """Rows draft the same tokens by either engine."""
        draw = random.Random(1)
        rows = [[draw.randrange(5) for _ in range(draw.randrange(1, 30))] for _ in range(6)]
        batch = batch_of(rows, plain=(2,))
        sizes = [
            [len(ids) for ids in proposed(SuffixDrafter(engine=engine), batch, Budget(6))]
            for engine in ("own", "arctic")
        ]
        assert sizes[0] == sizes[1]
        assert sizes[0][2] == 0
