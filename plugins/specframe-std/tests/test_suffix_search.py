"""What suffix decoding finds, held to counting occurrences in the texts themselves."""

from __future__ import annotations

import collections
import random
from array import array

import numpy as np
import pytest
from specframe_std.drafters.suffix import occurrences, walk
from specframe_std.drafters.suffix.corpus import Corpus
from specframe_std.drafters.suffix.engines import Own
from specframe_std.drafters.suffix.own_text import OwnText
from specframe_std.drafters.suffix.speculation import Most, Reach, Speculation
from suffix_counting import counted, reach_of, same, text


def padded(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return rows as one array and their lengths; what lies beyond a row would match, if it were looked at."""
    width = max(map(len, rows)) + 3
    return np.array([row + [row[-1]] * (width - len(row)) for row in rows]), np.array([len(row) for row in rows])


@pytest.mark.wide(but=["2-many-chain", "9-many-chain"])
@pytest.mark.parametrize("trees", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("few", [True, False], ids=["few", "many"])
@pytest.mark.parametrize("seed", range(12))
def test_own_text_is_counted(seed: int, few: bool, trees: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of unequal lengths get what counting in each row's text gives, however many occurrences there are."""
    if not few:
        monkeypatch.setattr(occurrences, "FEW", 0)
        monkeypatch.setattr(walk, "FEW", 0)
    draw = random.Random(seed)
    reach, tokens = reach_of(draw, trees), draw.choice([2, 3, 20])
    rows = [text(draw, draw.choice([1, 2, 9, 40, 70]), tokens) for _ in range(5)]
    most = [Most(draw.choice([1, 4, 20]), draw.choice([1, 3, 20])) for _ in rows]
    for row, one, found in zip(rows, most, OwnText(reach).find(*padded(rows), most), strict=True):
        assert same(found, counted([row], row, one, reach)[0], trees)


@pytest.mark.wide(but=["1-tree"])
@pytest.mark.parametrize("trees", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("seed", range(6))
def test_rows_that_say_the_same_over_and_over(seed: int, trees: bool) -> None:
    """Rows get what counting gives where most places lie whole periods before the row's end, broken off or not."""
    draw, rows = random.Random(300 + seed), []
    for _ in range(4):
        period = draw.choice(
            [draw.sample(range(20), k=draw.randrange(1, 9)), draw.choices(range(3), k=draw.randrange(2, 9))]
        )
        before, broken = text(draw, 9, 20), draw.choice([[], [period[0]], period * draw.randrange(2, 6) + [30]])
        rows.append(
            [
                *before,
                *broken,
                *period * draw.randrange(5, 90 // len(period)),
                *period[: draw.randrange(1, len(period) + 1)],
            ]
        )
    reach = Reach(draw.choice([1, 2]), depth=draw.choice([6, 12, 64]), tree=trees)
    most = [Most(draw.choice([2, 8]), 8)] * 4
    assert sum(row[:-1].count(row[-1]) for row in rows) > occurrences.FEW * len(rows)
    for row, one, found in zip(rows, most, OwnText(reach).find(*padded(rows), most), strict=True):
        assert same(found, counted([row], row, one, reach)[0], trees)


@pytest.mark.wide(but=["tree"])
@pytest.mark.parametrize("trees", [False, True], ids=["chain", "tree"])
def test_a_match_that_begins_before_the_first_period(trees: bool) -> None:
    """The place at the beginning of what a row says over and over is followed by another token, and matches as far as it does."""
    row, one, reach = [2, 1, 3, 1, 3, *[1, 2, 1, 3] * 8, 1], Most(1, 1), Reach(tree=trees)
    (found,) = OwnText(reach).find(np.array([row]), np.array([len(row)]), [one])
    assert row[:-1].count(1) > occurrences.FEW
    assert same(found, counted([row], row, one, reach)[0], trees)


def test_matches_of_a_first_row_that_is_far_shorter_than_others() -> None:
    """Where the longest row is compared as a whole, nothing is read that comes after a shorter one."""
    rows, most = [[1, 2] * 3 + [5] + [1, 2] * 10, [1, 2] * 40], 12
    found, expected = occurrences.occurrences(*padded(rows), most), []
    for row in rows:
        for end in (place for place in range(1, len(row)) if row[place - 1] == row[-1]):
            same_ = [row[end - back] == row[-back] for back in range(1, min(end, most) + 1)]
            expected.append([*same_, False].index(False))
    assert found.matches_C.tolist() == expected


def test_of_equally_frequent_tokens_the_latest() -> None:
    """Of tokens that occurred as often, several times, the one is taken that occurred last; of single ones the first."""
    assert walk.favourites([[1], [1], [2], [2]], 5, 0.1).tokens == [2]
    assert walk.favourites([[1], [2]], 3, 0.1).tokens == [1]


def found_in(corpus: Corpus, context: list[int], most: Most, reach: Reach, least: float = 0.0) -> Speculation | None:
    """Return what a corpus of responses finds for a context, of a score above the least."""
    return corpus.find(corpus.places(array("q", context[-reach.depth :])), most, least)


@pytest.mark.wide(but=["3-chain"])
@pytest.mark.parametrize("trees", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("seed", range(12))
def test_responses_are_counted(seed: int, trees: bool) -> None:
    """Contexts get what counting in the responses that are kept gives, while responses come and the oldest go."""
    draw = random.Random(100 + seed)
    reach, tokens, most = reach_of(draw, trees), draw.choice([2, 3, 6]), draw.choice([1, 3, 50])
    corpus, kept = Corpus(reach, most), collections.deque[list[int]](maxlen=most)
    shared = text(draw, 30, tokens)
    for _ in range(9):
        response = draw.choice([text(draw, draw.randrange(1, 40), tokens), shared, shared[draw.randrange(30) :]])
        corpus.add(response)
        kept.append(response)
        assert [*corpus.responses()] == [*kept]
        for context in (text(draw, 12, tokens), shared[: draw.randrange(2, 30)], response[:-1]):
            one = Most(draw.choice([1, 5, 20]), draw.choice([1, 4, 20]))
            expected, _ = counted([*kept], context, one, reach)
            assert same(found_in(corpus, context, one, reach) or Speculation(), expected, trees)
            if expected.tokens:
                wins = found_in(corpus, context, one, reach, expected.score)
                assert wins is None, "the row's own text wins ties"


@pytest.mark.wide
@pytest.mark.parametrize("trees", [False, True], ids=["chain", "tree"])
def test_matches_of_every_length_are_found(trees: bool) -> None:
    """A context whose last tokens occur, as many as there are, and those before them do not, gets what counting gives."""
    draw, reach, one = random.Random(7), Reach(tree=trees), Most(8, 8)
    response = text(draw, 90, 50)
    corpus = Corpus(reach, 2)
    corpus.add(response)
    corpus.add(response[20:70])
    for match in range(1, 64):
        context = [*range(100, 170), *response[5 : 5 + match]]
        expected, _ = counted([response, response[20:70]], context, one, reach)
        assert expected.match >= min(match, 50)
        assert same(found_in(corpus, context, one, reach) or Speculation(), expected, trees)


@pytest.mark.wide(but=["5-chain", "8-chain", "10-chain"])
@pytest.mark.parametrize("trees", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("seed", range(12))
def test_rows_and_responses_are_counted_round_by_round(seed: int, trees: bool) -> None:
    """Batches get what counting gives, while rows copy, grow, shrink, are replaced and change places, and responses come and go."""
    draw = random.Random(200 + seed)
    reach, tokens, most = reach_of(draw, trees), draw.choice([2, 3, 20]), draw.choice([1, 3])
    engine, kept = Own(reach, most), collections.deque[list[int]](maxlen=most)
    rows = [text(draw, draw.choice([1, 9, 30]), tokens) for _ in range(4)]
    for _ in range(8):
        kept.append(draw.choice([text(draw, draw.randrange(1, 40), tokens), draw.choice(rows)[-30:]]))
        engine.learn(kept[-1])
        rows = [changed(draw, row, draw.choice(kept), tokens) for row in rows]
        draw.shuffle(rows)
        asked = [Most(nodes, draw.choice([nodes, 3])) for nodes in draw.choices([1, 4, 20], k=len(rows))]
        for row, one, found in zip(rows, asked, engine.look_up(*padded(rows), asked), strict=True):
            own, others = counted([row], row, one, reach)[0], counted([*kept], row[-reach.depth :], one, reach)[0]
            assert same(found, others if others.score > own.score else own, trees)


def changed(draw: random.Random, row: list[int], response: list[int], tokens: int) -> list[int]:
    """Return what may become of a row from one round to the next."""
    start, kind = draw.randrange(len(response)), draw.choice(["copies", "copies", "grows", "shortened", "replaced"])
    if kind == "copies":
        return (row + response[start : start + draw.randrange(1, 20)])[-50:]
    if kind == "grows":
        return row + text(draw, 3, tokens)
    if kind == "shortened":
        return row[: draw.randrange(1, len(row) + 1)]
    return text(draw, draw.choice([1, 9, 30]), tokens)


def test_nothing_of_a_response_that_has_gone_is_left() -> None:
    """A corpus of one response has the tokens and the tree of that one, however many there were."""
    corpus, draw = Corpus(Reach(), 1), random.Random(3)
    for _ in range(40):
        corpus.add(text(draw, 30, 4))
    (last,) = corpus.responses()
    fresh = Corpus(Reach(), 1)
    fresh.add(last)
    assert len(corpus._tokens) <= 3 * (len(last) + 1)
    assert shape(corpus._root) == shape(fresh._root)


def shape(child: object) -> object:
    """Return a tree as counts and lengths of edges."""
    if isinstance(child, int):
        return 1
    return child.count, child.length, {token: shape(one) for token, one in sorted(child.children.items())}  # type: ignore[attr-defined]
