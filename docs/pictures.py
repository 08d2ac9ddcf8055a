"""The pictures of the documentation, light and dark: one round of decoding, and what is accepted of a policy that drifts.

The stages of a round are those that observers hear: their names are read from the code of a round, in its order. Curves are
those of a benchmark's results. docs/generate.py writes the files.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from xml.sax.saxutils import escape

from specframe.engine import loop

STAGE = re.compile(r'watch\.stage\((?:"\w+" if batch\.prefill else )?"(\w+)"\)')
"""A stage of a round in the code; of two names the second one is that of a round with drafts."""
SAID: Mapping[str, tuple[str, str, str]] = {
    "schedule": ("scheduler", "chooses the rows", "of the batch"),
    "prefill": ("target", "reads the prompts", "of new rows"),
    "draft": ("drafter", "proposes K tokens", "for each row"),
    "verify": ("verifier, target", "scores all drafts", "in one forward"),
    "accept": ("acceptance rule", "keeps a prefix, and", "adds a bonus token"),
    "align": ("alignment, KV store", "drops the keys of", "rejected tokens"),
}
"""Who acts in each stage, and two lines that say what happens."""
ROWS: tuple[tuple[str, list[str], list[str]], ...] = (
    ("for i", ["in", "n", ":", "if"], ["in", "x", ":", "if", "i"]),
    ("x =", ["f", "(", "y", ")"], ["f", "(", "y", ")", "+"]),
    ("if a", ["==", "0", ":", "b"], ["is", "1", ":", "b", "="]),
)
"""An example of three rows: the end of the text, the draft, and the target's own choice after each of its tokens."""
COLOURS: Mapping[str, Mapping[str, str]] = {
    "light": {"text": "#1f2328", "faint": "#59636e", "line": "#8c959f", "box": "#f6f8fa", "draft": "#ddf4ff",
              "accepted": "#aceebb", "bonus": "#ffdf5d", "rejected": "#eaeef2"},
    "dark": {"text": "#e6edf3", "faint": "#a5acb5", "line": "#6e7681", "box": "#161b22", "draft": "#0c2d6b",
             "accepted": "#116329", "bonus": "#7d4e00", "rejected": "#30363d"},
}  # fmt: skip
"""The colours by theme."""
WIDTH, LEFT, TOP, BOX, STEP = 876, 6, 8, 132, 146
"""The picture's width, its margins, the width of a stage's box, and from one box to the next."""
CHIP, ROW, FIRST = 25, 34, 128
"""The width of a token, the height of a row, and where the rows begin."""


def stages() -> list[str]:
    """Return the stages of a round in the order in which observers hear them first."""
    source = inspect.getsource(loop.launch).replace("flight = decide(batch, draft)", inspect.getsource(loop.decided))
    return [*dict.fromkeys(STAGE.findall(source))]


def draw(theme: str) -> str:
    """Return the picture of a round as an SVG for a theme, "light" or "dark"."""
    colour, names = COLOURS[theme], stages()
    parts = [part for number, name in enumerate(names) for part in stage(colour, name, LEFT + STEP * number)]
    parts += [arrow(colour, LEFT + STEP * number - 13, TOP + 36) for number in range(1, len(names))]
    for number, (text, draft, target) in enumerate(ROWS):
        parts += row(colour, names, FIRST + ROW * number, text, draft, target)
    bottom = FIRST + ROW * len(ROWS) + 8
    last = LEFT + STEP * (len(names) - 1) + BOX // 2
    back = f"M{last} {bottom} v12 H{LEFT + BOX // 2} v-8 m-4 4 l4 -5 l4 5"
    parts += [f'<path d="{back}" fill="none" stroke="{colour["line"]}"/>']
    parts += [written(colour["faint"], WIDTH // 2, bottom + 27, "the next round begins with the new tokens", 11)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}" font-family="sans-serif" role="img">'
    title = f"<title>A round of decoding: {', '.join(names)}</title>"
    return "\n".join([head, title, *parts, "</svg>"]) + "\n"


def stage(colour: Mapping[str, str], name: str, left: int) -> Iterator[str]:
    """Yield a stage's box with its name, who acts in it, and what happens."""
    yield f'<rect x="{left}" y="{TOP}" width="{BOX}" height="84" rx="8" fill="{colour["box"]}" stroke="{colour["line"]}"/>'
    middle = left + BOX // 2
    yield written(colour["text"], middle, TOP + 20, name, 14, 'font-weight="bold"')
    yield written(colour["faint"], middle, TOP + 37, SAID[name][0], 11)
    yield written(colour["text"], middle, TOP + 57, SAID[name][1], 11.5)
    yield written(colour["text"], middle, TOP + 73, SAID[name][2], 11.5)


def row(
    colour: Mapping[str, str], names: list[str], top: int, text: str, draft: list[str], target: list[str]
) -> Iterator[str]:
    """Yield what one row has in each stage."""
    accepted = [*takewhile(lambda pair: pair[0] == pair[1], zip(draft, target, strict=False))]
    new = len(accepted) + 1
    left = {name: LEFT + STEP * number for number, name in enumerate(names)}
    yield written(colour["text"], left["schedule"] + BOX // 2, top + 15, f"… {text}", 12, 'font-family="monospace"')
    yield written(colour["faint"], left["prefill"] + BOX // 2, top + 15, "(read before)", 11)
    yield from chips(colour, left["draft"] + 16, top, draft, ["draft"] * len(draft))
    scored = ["accepted"] * (new - 1) + ["bonus"] + ["rejected"] * (len(target) - new)
    yield from chips(colour, left["verify"] + 3, top, target, scored)
    yield from chips(colour, left["accept"] + 3, top, target[:new], scored)
    told = f"{new} new token{'s' * (new > 1)}, {len(draft) - new + 1} dropped"
    yield written(colour["text"], left["align"] + BOX // 2, top + 15, told, 10.5)


def chips(colour: Mapping[str, str], left: int, top: int, tokens: list[str], kinds: list[str]) -> Iterator[str]:
    """Yield tokens side by side; those after the first rejected one are faint."""
    for number, (token, kind) in enumerate(zip(tokens, kinds, strict=False)):
        x = left + CHIP * number
        yield f'<rect x="{x}" y="{top}" width="{CHIP - 3}" height="22" rx="4" fill="{colour[kind]}"/>'
        ink = colour["faint" if kind == "rejected" else "text"]
        yield written(ink, x + (CHIP - 3) / 2, top + 15, token, 12, 'font-family="monospace"')


def arrow(colour: Mapping[str, str], left: int, top: int) -> str:
    """Return an arrow from one box to the next."""
    return f'<path d="M{left} {top} h10 m-4 -4 l4 4 l-4 4" fill="none" stroke="{colour["line"]}"/>'


def written(ink: str, x: float, y: float, text: str, size: float, more: str = "") -> str:
    """Return a text centred at a place."""
    more = f" {more}" if more else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{ink}" text-anchor="middle"{more}>{escape(text)}</text>'
    )


RESULTS = Path(__file__).parents[1] / "benchmarks/results/following-cpu-float32.json"
CURVES: Mapping[str, tuple[str, str, str]] = {
    "follows": ("the head that follows", "#0969da", "#58a6ff"),
    "as it was": ("the head as it was", "#bc4c00", "#f0883e"),
    "suffix": ("suffix, earlier responses", "#57606a", "#8b949e"),
}
"""The name of each curve, and its colour on light and on dark."""
PLOT = (52, 16, 620, 240)
"""Left, top, width and height of the part with curves."""


def following(theme: str) -> str:
    """Return the curves of benchmarks/following.py as an SVG for a theme: acceptance length by step of the policy."""
    colour, rows = COLOURS[theme], json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    left, top, width, height = PLOT
    most, last = int(max(max(row["length"].values()) for row in rows)) + 1, rows[-1]["step"]
    right, bottom, middle = left + width, top + height, top + height / 2

    def at(step: float, length: float) -> tuple[float, float]:
        return left + width * step / last, bottom - height * (length - 1) / (most - 1)

    parts = list[str]()
    for length in range(1, most + 1):
        parts += [f'<path d="M{left} {at(0, length)[1]:g} H{right}" stroke="{colour["rejected"]}"/>']
        parts += [written(colour["faint"], left - 14, at(0, length)[1] + 4, str(length), 11)]
    parts += [written(colour["faint"], at(step, 1)[0], bottom + 18, str(step), 11) for step in range(0, last + 1, 10)]
    parts += [written(colour["faint"], left + width / 2, bottom + 36, "steps of the policy", 11)]
    parts += [written(colour["faint"], 14, middle, "acceptance length", 11, f'transform="rotate(-90 14 {middle:g})"')]
    for name, (told, light, dark) in CURVES.items():
        ink, points = dark if theme == "dark" else light, [at(row["step"], row["length"][name]) for row in rows]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts += [f'<polyline points="{joined}" fill="none" stroke="{ink}" stroke-width="2"/>']
        parts += [written(ink, right + 102, points[-1][1] + 4, told, 12)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 46}" font-family="sans-serif" role="img">'
    title = "<title>Acceptance length by step of a policy that drifts</title>"
    return "\n".join([head, title, *parts, "</svg>"]) + "\n"
