"""What the site has in addition to docs/: pages from elsewhere in the repository, the reference, and links as a git host resolves
them.

Pages link to files of the repository. On the site such a link leads to the page that the file has become. A file that is no page,
as a source, becomes one that shows it where a page links to it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from specframe_testing.strict import OF_THE_CORE

import specframe

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages from outside docs/: their place in the repository, and on the site."""
PACKAGES = {
    f"plugins/{path.parent.name}/README.md": f"packages/{path.parent.name}.md"
    for path in sorted(ROOT.glob("plugins/*/README.md"))
}
REFERENCE = {
    "specframe.contracts": "specframe/contracts",
    "specframe_std.kv": "plugins/specframe-std/specframe_std/kv",
    "specframe_std.trees": "plugins/specframe-std/specframe_std/trees",
    "specframe_testing": "plugins/specframe-testing/specframe_testing",
}
"""Packages of which the reference has all public names, and their folders. Of ``specframe`` it has the names that are exported."""
HANDED = "reference/handed.md"
"""The place on the site of the page of what strategies are handed."""
ASSETS = {f"docs/site/{name}": f"assets/{name}" for name in ("accessible.js", "iframe-worker.js", "style.css")}

FENCED = re.compile(r"(^[ ]*```.*?^[ ]*```$)", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
"""A link to a file: the file, and the heading in it. Links to other hosts, and within a page, are none."""
PICTURE = re.compile(r'(?<= )(src|srcset)="([^":]+)"')
"""A picture's file in an element of HTML."""
COMMENT = re.compile(r"^<!--.*?-->\n", flags=re.MULTILINE | re.DOTALL)
NESTED = re.compile(r"(?<=\n\n)(?:  +\S.*(?:\n|\Z))+")
"""A paragraph within an item of a list. It begins in the third column, and the site's Markdown wants the fifth."""
ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):<code>([\w.]+)</code>")
"""A name in a docstring, as HTML has it."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what does not lie in docs/, to the navigation as well, and below each page the version that it is of."""
    config.copyright = f"specframe {specframe.__version__}"
    config.theme.static_templates.discard("404.html")  # its links have a server's root, and the site is read from files
    written = {uri: text(place) for place, uri in {**PAGES, **PACKAGES, **ASSETS}.items()}
    packages = {package: modules(package) for package in REFERENCE}
    written |= {reference_uri(module): reference_page(module) for found in packages.values() for module in found}
    written[reference_uri("specframe")] = exported_page()
    written[HANDED] = handed_page()
    written |= {uri_of(place): source_page(place) for place in linked_sources()}
    for uri, content in written.items():
        files.append(File.generated(config, uri, content=content))
    reference: list[object] = [reference_uri("specframe"), HANDED]
    for package, (first, *rest) in packages.items():
        below = [{module.removeprefix(f"{package}."): reference_uri(module)} for module in rest]
        reference.append({package: [reference_uri(first), *below]})
    config.nav += [{"Packages": [*PACKAGES.values()]}, {"Reference": reference}]
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return a page with the site's links, without comments, and with paragraphs of lists where the site's Markdown wants them."""
    origin = ORIGINS.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    if not (ROOT / origin).is_file():
        return markdown

    def shown(place: str) -> str:
        return posixpath.relpath(uri_of(target(origin, place)), posixpath.dirname(page.file.src_uri))

    def link(found: re.Match[str]) -> str:
        return f"]({shown(found[1])}{found[2] or ''})"

    def picture(found: re.Match[str]) -> str:
        return f'{found[1]}="{shown(found[2])}"'

    parts = FENCED.split(markdown)  # every second one is code
    for place in range(0, len(parts), 2):
        prose = COMMENT.sub("", PICTURE.sub(picture, LINK.sub(link, parts[place])))
        parts[place] = NESTED.sub(lambda found: re.sub("^", "  ", found[0], flags=re.MULTILINE), prose)
    return "".join(parts)


def on_page_content(html: str, **_: object) -> str:
    """Return a page whose docstrings link to the names that they refer to, where these are in the reference."""
    return ROLE.sub(
        lambda found: f'<autoref optional identifier="{defined(found[1])}"><code>{found[1]}</code></autoref>', html
    )


def defined(name: str) -> str:
    """Return the place where a name is defined: a name of ``specframe`` itself has one elsewhere."""
    own = specframe._WHERE.get(name.removeprefix("specframe."))
    return f"{own}.{name.removeprefix('specframe.')}" if own and name.startswith("specframe.") else name


def target(origin: str, link: str) -> str:
    """Return the place in the repository that a page links to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))


def uri_of(place: str) -> str:
    """Return the place on the site of a file or folder of the repository."""
    if (known := {**PAGES, **PACKAGES}.get(place)) is not None:
        return known
    shown = place.startswith("docs/") and not place.endswith(".py")
    return place.removeprefix("docs/") if shown else f"source/{place}.md"


def linked_sources() -> list[str]:
    """Return the files and folders that pages link to and that are no pages."""
    found = set()
    for origin in [*PAGES, *PACKAGES, *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]:
        for part in FENCED.split(text(origin))[::2]:
            found |= {target(origin, link) for link, _ in LINK.findall(part)}
    return sorted(place for place in found if uri_of(place).startswith("source/"))


def source_page(place: str) -> str:
    """Return a page that shows a file, or all files of a folder. It is not searched."""
    path = ROOT / place
    files = sorted(path.glob("*.*")) if path.is_dir() else [path]
    parts = ["---\nsearch:\n  exclude: true\n---", f"# {place}"]
    for file in files:
        parts += [f"## {file.name}"] if path.is_dir() else []
        parts.append(f"````{file.suffix.removeprefix('.') or 'text'}\n{file.read_text(encoding='utf-8')}````")
    return "\n\n".join(parts) + "\n"


def modules(package: str) -> list[str]:
    """Return a package and its modules."""
    folder, found = ROOT / REFERENCE[package], []
    for path in sorted(folder.rglob("*.py")):
        parts = [part for part in path.relative_to(folder).with_suffix("").parts if part != "__init__"]
        found.append(".".join([package, *parts]))
    return sorted(found)


def reference_uri(module: str) -> str:
    """Return the place on the site of a module's reference."""
    return f"reference/{module}.md"


def reference_page(module: str) -> str:
    """Return the page of a module's public names."""
    shown = module.replace(".", ".<wbr>")
    return f"# {shown}\n\n::: {module}\n    options: {{ show_root_heading: false, show_root_toc_entry: false }}\n"


def exported_page() -> str:
    """Return the page of the names that ``specframe`` exports. They are defined in modules of its own."""
    parts = ["# specframe"]
    for name, where in specframe._WHERE.items():
        parts.append(f"::: {where}.{name}\n    options: {{ heading: specframe.{name}, toc_label: {name} }}")
    return "\n\n".join(parts) + "\n"


def handed_page() -> str:
    """Return the page of the objects that strategies are handed, with the members that they may use."""
    parts = ["# What strategies are handed"]
    for one, names in OF_THE_CORE.items():
        members = ", ".join(sorted(names))
        parts.append(
            f"::: {one.__module__}.{one.__name__}\n    options: {{ members: [{members}], merge_init_into_class: false }}"
        )
    return "\n\n".join(parts) + "\n"


def text(place: str) -> str:
    """Return the text of a file of the repository."""
    return (ROOT / place).read_text(encoding="utf-8")


ORIGINS = {uri: place for place, uri in {**PAGES, **PACKAGES}.items()}
"""The places in the repository of the pages that do not lie in docs/."""
