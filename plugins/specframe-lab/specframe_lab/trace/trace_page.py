"""The page that steps through traces: one file, which needs nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from specframe_lab.report.markup import part, row, table
from specframe_lab.trace.captions import Captions, bytes_text
from specframe_lab.trace.frames import EMPTY, PADDING, STALE, Frame, Lane, SchemeTrace, Score
from specframe_lab.trace.tree_drawing import drawn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Json = dict[str, Any]
SCRIPTS = ("base.js", "lane.js", "panel.js", "tables.js", "page.js")
"""The parts of the page's script, in order."""
COLUMNS = ("scheme", "passes of the target", "slots moved", "bytes moved", "prompts with the target's own text")
"""The columns of the totals of every scheme, for readers without JavaScript."""


def render(schemes: Sequence[SchemeTrace], facts: dict[str, str], text_of: Callable[[int], str]) -> str:
    """Return the page of runs over the same prompts; ``facts`` say what is shown: "target", "batch size" and the like."""
    page, style, *scripts = (part(name, "trace") for name in ("page.html", "page.css", *SCRIPTS))
    data = json.dumps(page_data(schemes, facts, text_of), separators=(",", ":")).replace("<", "\\u003c")
    numbers = table(COLUMNS, [row(map(escape, totals(scheme))) for scheme in schemes])
    for place, content in (
        ("/*STYLE*/", style),
        ("<!--NUMBERS-->", numbers),
        ("/*SCRIPT*/", "\n".join(scripts)),
        ("/*DATA*/", data),
    ):
        page = page.replace(place, content)
    return page


def totals(scheme: SchemeTrace) -> tuple[str, ...]:
    """Return the totals of a scheme: name, passes, moved slots and bytes, and prompts whose text is the target's own."""
    moved = sum(frame.shifted + frame.carried for frame in scheme.frames)
    passes = sum(frame.phase != "settle" for frame in scheme.frames)
    equal = sum(got == own for got, own in zip(scheme.outputs, scheme.reference or [], strict=False))
    own = f"{equal} of {len(scheme.outputs)}" if scheme.reference else "-"
    return scheme.name, str(passes), str(moved), bytes_text(moved * scheme.slot_bytes), own


def page_data(schemes: Sequence[SchemeTrace], facts: dict[str, str], text_of: Callable[[int], str]) -> Json:
    """Return the data of the page, ready for JSON."""
    prompts, reference = schemes[0].prompts, schemes[0].reference
    lists = [prompts, reference or [], *(scheme.outputs for scheme in schemes)]
    ids = {token for sequences in lists for tokens in sequences for token in tokens}
    ids |= {cell.token for scheme in schemes for cell in scheme.cells}
    ids |= {t for s in schemes for f in s.frames for lane in f.lanes if lane.score for t in lane.score.tokens}
    return {
        "facts": facts,
        "texts": {token: text_of(token) for token in sorted(ids)},
        "prompts": prompts,
        "reference": reference,
        "schemes": [scheme_data(scheme, text_of) for scheme in schemes],
    }


def scheme_data(scheme: SchemeTrace, text_of: Callable[[int], str]) -> Json:
    """Return one scheme's part of the page's data."""
    captions, totals = Captions(scheme), Totals(scheme)
    return {
        "name": scheme.name,
        "about": f"{scheme.about} Draft trees: {scheme.tree}." if scheme.tree else scheme.about,
        "lossless": scheme.lossless,
        "windows": scheme.windows,
        "outputs": scheme.outputs,
        "finish": scheme.finish,
        "cells": [[cell.token, cell.order, cell.position, cell.round] for cell in scheme.cells],
        "frames": [
            {
                "round": frame.round,
                "phase": frame.phase,
                "caption": captions.caption(index),
                "moved": frame.shifted + frame.carried,
                "totals": totals.after(frame),
                "trees": [line for lane in frame.lanes for line in drawn(lane, text_of)],
                "lanes": [lane_data(lane, captions.carried(lane, index)) for lane in frame.lanes],
            }
            for index, frame in enumerate(scheme.frames)
        ],
    }


TOLD = ("drafted", "accepted", "by_rule", "altered", "finish", "queries", "keys")
"""What the page has of a score as it is."""


def lane_data(lane: Lane, carried: str) -> Json:
    """Return one sequence's part of a frame; ``carried`` describes a change of its row, if any."""
    kept: Json = {"prompt": lane.prompt, "row": lane.row, "slots": lane.slots, "marks": lane.marks}
    kept |= {"shift": lane.shift} if lane.shift else {}
    kept |= {"carried": carried} if carried else {}
    if lane.score is not None:
        score = lane.score
        bonus = score.tokens[score.accepted] if len(score.tokens) > score.accepted else None
        kept["score"] = {
            **{name: getattr(score, name) for name in TOLD},
            "bonus": bonus,
            "gained": len(score.tokens),
            "start": score.length + score.drafted - len(score.queries),
        }
        kept["score"] |= {"sees": score.sees, "own": own_slots(score)} if score.sees is not None else {}
    return kept


def own_slots(score: Score) -> list[list[int]]:
    """Return the slots of each fed token's own path in the tree, itself included."""
    found: list[list[int]] = [[]]
    for node in score.tree:
        found.append([*found[node.parent + 1], node.slot])
    return found


HOLES = {"padding": PADDING, "stale": STALE, "empty": EMPTY}
"""The slots of a row without a token of it, by name."""


class Totals:
    """The counters of a scheme, frame by frame."""

    def __init__(self, scheme: SchemeTrace) -> None:
        self._scheme = scheme
        self._so_far: Counter[str] = Counter()
        self._passes: Counter[str] = Counter()

    def after(self, frame: Frame) -> Json:
        """Return the counters after one more frame: what moved so far, and what else than tokens the pass's rows hold.

        ``padding``, ``stale`` and ``empty`` are of this frame; ``padding_so_far`` and the like of all passes up to it.
        """
        rows, moved = [lane for lane in frame.lanes if lane.row is not None], frame.shifted + frame.carried
        marks = "".join(lane.marks for lane in rows)
        held = {name: marks.count(mark) for name, mark in HOLES.items()} | {"places": len(marks)}
        self._so_far.update(
            shifted=frame.shifted,
            carried=frame.carried,
            moved=moved,
            bytes=moved * self._scheme.slot_bytes,
            draft_bytes=frame.draft_moved * self._scheme.draft_slot_bytes,
            tokens=sum(len(lane.score.tokens) for lane in rows if lane.score),
        )
        if frame.phase != "settle":
            self._passes.update(held)
        return {**self._so_far, **held, **{f"{name}_so_far": self._passes[name] for name in held}}


def token_text(tokenizer: PreTrainedTokenizerBase | None) -> Callable[[int], str]:
    """Return a function from a token to its text; without a tokenizer, or for half a character, to its id."""

    def text_of(token: int) -> str:
        if tokenizer is None:
            return f"#{token}"
        text = tokenizer.decode([token], clean_up_tokenization_spaces=False)
        if "\N{REPLACEMENT CHARACTER}" in text or not text:
            return str(tokenizer.convert_ids_to_tokens(token) or f"#{token}")
        return str(text)

    return text_of
