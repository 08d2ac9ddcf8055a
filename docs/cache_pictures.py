"""Draw the target's cache under each alignment as text: ``specframe trace``'s recording, one letter per slot."""

from __future__ import annotations

from itertools import dropwhile, islice

from specframe_lab.trace.frames import ACCEPTED, CUT, EMPTY, INPUT, KEPT, PADDING, REJECTED, STALE, Frame
from specframe_lab.trace.trace_recorder import record

PROMPTS = ["def f(x):", "import os\n"]
"""Prompts of unequal length, of which the first accepts more in one round and the second in the next."""
ALIGNMENTS = {
    "ragged": PROMPTS,
    "eqspec": PROMPTS,
    "exspec": [*PROMPTS, " The cat"],  # a prompt more than rows, so that there are rows to choose from
    "rollback": PROMPTS,
    "masking": PROMPTS,
    "padding": PROMPTS,
}
SIGNS = str.maketrans(
    {KEPT: "o", INPUT: "*", ACCEPTED: "+", REJECTED: "x", CUT: "/", STALE: "~", PADDING: "_", EMPTY: " "}
)
"""Signs of one column each in every font, in the place of those that the page of a trace colours."""
TITLES = ("a round", "after it", "the next round", "after it")
LABEL, WIDTH = 9, 16
"""Columns of an alignment's name, and of a frame: lines as wide as a page of the site."""


def pictures() -> str:
    """Return a block of text with the first two decoding rounds of every alignment."""
    return "```text\n" + "\n\n".join(map(picture, ALIGNMENTS)) + "\n```\n"


def picture(alignment: str) -> str:
    """Return two rounds of an alignment, a line for each prompt, with how many cached tokens changed their slot."""
    prompts = ALIGNMENTS[alignment]
    trace = record(prompts, 12, target="tiny", drafter="tiny-draft", align=alignment, draft_length=4, batch_size=2)
    frames = list(islice(dropwhile(lambda frame: frame.phase != "score", trace.frames), len(TITLES)))
    moved = sum(frame.shifted for frame in frames)
    lines = [f"{alignment:<{LABEL}}" + "".join(f"{title:<{WIDTH}}" for title in TITLES).rstrip() + f", {moved} moved"]
    for prompt in range(len(prompts)):
        cells = "".join(f"{slots(frame, prompt):<{WIDTH}}" for frame in frames)
        lines.append(f"{f'  text {prompt}':<{LABEL}}{cells}".rstrip())
    return "\n".join(lines)


def slots(frame: Frame, prompt: int) -> str:
    """Return the signs of a prompt's slots in a frame."""
    return "".join(lane.marks.translate(SIGNS) for lane in frame.lanes if lane.prompt == prompt)
