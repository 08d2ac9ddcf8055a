"""Figures as files, and as part of a page."""

from __future__ import annotations

import io
import re
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from specframe_std.output_file import MARK
from specframe_std.output_folders import write_page

from specframe_lab.report.canvas import GRID, INK, STYLE


def png(figure: Figure) -> bytes:
    """Return a figure as PNG on white."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200, facecolor="white", metadata={"Software": MARK})
    return buffer.getvalue()


def svg(figure: Figure, name: str) -> str:
    """Return a figure as SVG for a page: its text is the page's, and its ids are its own."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, **STYLE}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(|href=")#', rf"\g<1>#{name}-", text)
    return re.sub(r"font: ([^;\"]*?px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)


def write_figure(figure: Figure, name: str, folder: Path) -> str:
    """Write a figure as SVG and as PNG, and return it as SVG for a page."""
    inline = svg(figure, name)
    write_page(folder / f"{name}.svg", standing_alone(inline))
    write_page(folder / f"{name}.png", png(figure))
    return inline


def standing_alone(inline: str) -> str:
    """Return the SVG of a page as a separate file with a white background."""
    start = '<svg xmlns="http://www.w3.org/2000/svg" style="background:#ffffff" '
    return f'<?xml version="1.0" encoding="utf-8"?>\n<!-- {MARK} -->\n' + inline.replace("<svg ", start, 1)


def adapting(inline: str) -> str:
    """Return an SVG with the page's colours of lines and grid."""
    return inline.replace(INK, "currentColor").replace(GRID, "var(--line)")
