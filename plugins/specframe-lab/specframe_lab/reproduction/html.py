"""The page of a reproduction as HTML: what its Markdown says, its figures in it, and nothing fetched from anywhere."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from html import escape

from markdown_it import MarkdownIt

from specframe_lab.report import markup
from specframe_lab.report.images import adapting


def rendered(markdown: str, pictures: Mapping[str, str]) -> str:
    """Return the page of a text. A picture in it is ``![name](name.svg)``, a comment is left out; ``pictures`` are SVG by name."""
    markdown = re.sub(r"(?s)<!--.*?-->\n*", "", markdown)  # the renderer takes no HTML: it would show a comment as text
    content = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    title = re.search(r"<h1>(.*?)</h1>", content)
    content = re.sub(r'<p><img src="(\w+)\.svg" alt="\w*" ?/?></p>', lambda found: figure(found[1], pictures), content)
    content = re.sub(r"(?s)(<h2>(?:(?!<h2>).)*?)<table>(.*?)</table>", lambda found: boxed(found[1], found[2]), content)
    page = string.Template(markup.part("reproduction.html", "reproduction"))
    return page.substitute(title=title[1] if title else "", style=markup.part("page.css"), content=content)


def figure(name: str, pictures: Mapping[str, str]) -> str:
    """Return a figure whose ink is the page's."""
    named = f'<svg role="img" aria-label="{escape(name)}: the numbers are those of the table above" '
    return f'<figure id="{escape(name)}">{adapting(pictures[name]).replace("<svg ", named, 1)}</figure>'


def boxed(before: str, table: str) -> str:
    """Return a table in a box that scrolls by itself, named by the heading before it; the first cell of a row names it."""
    name = re.sub(r"<.*?>", "", before[: before.index("</h2>")])
    table = re.sub(r"<tr>\s*<td[^>]*>(.*?)</td>", r'<tr><th scope="row">\1</th>', table)
    table = re.sub(r"<th(?=[ >])(?! scope)[^>]*>", '<th scope="col">', table)
    return before + markup.boxed(name, f"<table>{table}</table>")
