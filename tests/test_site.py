"""The documentation as a site: it builds without a warning, asks nothing of other hosts, and is searched from the file system."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import CHROMIUM, browsing, faults, needs_chromium
from pages import PAGES, ROOT

import specframe

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
ELSEWHERE = re.compile(r"(?:https?:)?//", flags=re.IGNORECASE)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built with every warning as an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class Addresses(HTMLParser):
    """Collects the addresses in a page: those a browser fetches with it, as of scripts and images, and those of links."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses of a tag."""
        given = dict(attrs)
        self.links += [given["href"] or ""] if tag == "a" and "href" in given else []
        fetched = [given.get("src"), given.get("href") if tag in ("link", "image", "use") else None]
        self.found += [address for address in fetched if address]


def test_every_page_is_there(site: Path) -> None:
    """Each page of docs/ has a page on the site, and so have those from elsewhere in the repository."""
    own = [page.stem for page in PAGES if page.parent.name == "docs"]
    others = ["index", "contributing", "changelog", "security", "benchmarks", "packages/specframe-tiny"]
    assert [name for name in [*own, *others] if not (site / f"{name}.html").is_file()] == []


def test_every_link_leads_to_a_page(site: Path) -> None:
    """Each link within the site leads to a file that is there."""
    for page in set(site.rglob("*.html")) - {site / "404.html"}:
        within = [link.partition("#")[0].partition("?")[0] for link in Addresses(page).links if ":" not in link]
        missing = [link for link in within if not (page.parent / link).exists()]
        assert missing == [], page


def test_nothing_is_asked_of_other_hosts(site: Path) -> None:
    """No page fetches a script, a style, an image or a font from an address of another host, and no style does."""
    pages = {page.name: Addresses(page).found for page in site.rglob("*.html")}
    assert sum(map(len, pages.values())) > 500
    assert {name: address for name, found in pages.items() for address in found if ELSEWHERE.match(address)} == {}
    styles = [page.read_text(encoding="utf-8") for page in site.rglob("*.css")]
    taken = [address for text in styles for address in re.findall(r"(?:@import|url\()\s*[\"']?([^\"')]+)", text)]
    assert [address for address in taken if ELSEWHERE.match(address)] == []


def public(path: Path) -> list[str]:
    """Return the names of the classes and functions that a module defines for others."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    kinds = (ast.ClassDef, ast.FunctionDef)
    return [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]


def test_the_reference_has_every_public_name(site: Path) -> None:
    """Every public class and function of contracts, kv and trees has a place in the reference that can be linked to."""
    std = ROOT / "plugins" / "specframe-std"
    rooms = [(ROOT, "specframe/contracts"), (std, "specframe_std/kv"), (std, "specframe_std/trees")]
    for base, path in [(folder, path) for folder, room in rooms for path in sorted((folder / room).glob("*.py"))]:
        module = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
        text = (site / f"reference/{module}.html").read_text(encoding="utf-8")
        assert [name for name in public(path) if f'id="{module}.{name}"' not in text] == [], module


def test_the_reference_of_a_pipeline(site: Path) -> None:
    """The exported names are there under the package's own name, a default is its value, and a name in a docstring is a link."""
    text = (site / "reference/specframe.html").read_text(encoding="utf-8")
    plain = re.sub(r"<[^>]+>", "", text)
    for name in ("Pipeline", "Sampling", "SpecframeError", "assisted", "hookimpl"):
        assert f"specframe.{name}" in plain
    assert "batch_size: int = 8" in plain
    assert "DEFAULTS" not in plain
    assert re.search(
        r'<a[^>]*href="specframe\.contracts\.roles\.html#specframe\.contracts\.roles\.Observer"><code>', text
    )


def test_pages_tell_their_version(site: Path) -> None:
    """Below each page is the version that it is of."""
    assert f"specframe {specframe.__version__}" in (site / "speed.html").read_text(encoding="utf-8")


def test_the_reference_of_what_strategies_are_handed(site: Path) -> None:
    """A run and a pool have what strategies may use, and nothing of the engine's."""
    text = (site / "reference/handed.html").read_text(encoding="utf-8")
    for place in ("model.run.Run.open_cache", "model.cached.CachedModel.feed", "engine.pool.Pool.batch"):
        assert f'id="specframe.{place}"' in text
    assert 'id="specframe.model.run.Run.put_away"' not in text


def test_a_source_that_pages_link_to_is_shown(site: Path) -> None:
    """A link to a module leads to a page with its text, and one to a folder to a page with all its files."""
    assert "class LocalEngine" in re.sub(
        r"<[^>]+>", "", (site / "source/specframe/engine/local_engine.py.html").read_text()
    )
    results = (site / "source/benchmarks/results.html").read_text(encoding="utf-8")
    assert all(path.name in results for path in (ROOT / "benchmarks/results").glob("*.*"))


@needs_chromium
def test_the_search_works_from_the_file_system(site: Path, tmp_path: Path) -> None:
    """A browser that reads the site from files finds a word, and says nothing on its console."""
    page = f"{(site / 'index.html').as_uri()}?q=rollback"
    command = [str(CHROMIUM), *FLAGS, "--enable-logging=stderr", f"--user-data-dir={tmp_path}", page]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=True)
    assert [text for text in seen.stderr.splitlines() if "CONSOLE" in text] == []
    assert re.search(r"md-search-result__meta\">\d+ matching documents", seen.stdout)
    assert "strategies.html?h=rollback#rollback" in seen.stdout


@needs_chromium
def test_pages_are_accessible(site: Path) -> None:
    """Every page, on a wide and on a narrow screen, light and dark, keeps to axe-core's rules and to the width of the screen."""
    found = dict[str, list[str]]()
    with browsing() as page:
        for path in sorted(site.glob("*.html")):
            page.goto(path.as_uri())
            found |= {path.name: broken} if (broken := faults(page)) else {}
    assert found == {}
