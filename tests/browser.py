"""Pages in a real browser: on a wide and on a narrow screen, light and dark, held against axe-core's rules of accessibility."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, Debian's package of that name")
SCREENS = ((1280, "light"), (400, "dark"))
"""Widths in pixels, a laptop's and a telephone's, each in one colour scheme: rules about colours do not depend on the width."""
HEIGHT = 900
OPEN = "[...document.querySelectorAll('details')].slice(0, 2).forEach((one) => { one.open = true; })"
"""Unfolds the first tables of a page: the others are made alike, and rules about colours take their time in every cell."""


@contextlib.contextmanager
def browsing() -> Iterator[Page]:
    """Give an empty page of a browser, which may look into frames; at the end nothing must have been said on its console."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--allow-file-access-from-files"])
        with browser:
            page, said = browser.new_page(), list[str]()
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            yield page
            assert said == [], said


def faults(page: Page) -> list[str]:
    """Return the faults of a page: screens that it is wider than, and rules of accessibility that it breaks."""
    from axe_playwright_python.sync_playwright import Axe

    page.evaluate(OPEN)
    found = []
    for width, scheme in SCREENS:
        page.set_viewport_size({"width": width, "height": HEIGHT})
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        wide = page.evaluate("document.documentElement.scrollWidth")
        found += [f"{width} {scheme}: the page is {wide} wide"] if wide > width else []
        for broken in Axe().run(page).response["violations"]:
            places = [f"{node['target']} {node['html'][:200]}" for node in broken["nodes"][:3]]
            found.append(f"{width} {scheme}: {broken['id']}: {broken['help']}: {'; '.join(places)}")
    return found
