"""The documentation: its code runs, its commands parse, its links resolve, and nothing is left out of it."""

from __future__ import annotations

import collections
import functools
import importlib.util
import inspect
import itertools
import pkgutil
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import BLOCK, FORMS, PAGES, ROOT, command_of, forgetting, name, put
from specframe_lab.commands.lab_option_types import ListOf
from specframe_lab.grid import split_list

from specframe import Pipeline
from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.plugins import hookspecs
from specframe.plugins import registry as plugins
from specframe.plugins.entries import ROLES

CONTRACTS = ROOT / "specframe/contracts"

MOST_WORDS = {
    "docs/budgets.md": 1100,
    "docs/building-blocks.md": 400,
    "docs/capabilities.md": 830,
    "docs/design.md": 3300,
    "docs/evaluation.md": 600,
    "docs/figures.md": 950,
    "docs/drop-in.md": 650,
    "docs/generation.md": 900,
    "docs/heads.md": 1080,
    "docs/lab.md": 1200,
    "docs/laws.md": 1000,
    "docs/limits.md": 1200,
    "docs/memory.md": 1150,
    "docs/more-plugins.md": 980,
    "docs/output.md": 700,
    "docs/plugins.md": 1000,
    "docs/predict.md": 700,
    "docs/prompts.md": 670,
    "docs/quantised.md": 300,
    "docs/reproduction.md": 1250,
    "docs/roles.md": 1200,
    "docs/scale.md": 1200,
    "docs/serve.md": 1000,
    "docs/sets.md": 900,
    "docs/speed.md": 1100,
    "docs/stability.md": 750,
    "docs/start.md": 350,
    "docs/strategies.md": 2500,
    "docs/trace.md": 900,
    "docs/training-loops.md": 600,
    "docs/trees.md": 700,
    "docs/works-with.md": 300,
    "README.md": 1250,
    "CONTRIBUTING.md": 2200,
    "benchmarks/README.md": 3900,
}
"""The most words of each page, code and generated parts left out. Numbers may become smaller, never larger."""

GENERATED = re.compile(r"<!-- ([\w -]+): written by docs/.*?<!-- end of \1 -->", flags=re.DOTALL)

STRATEGY_OPTIONS = {
    "--align": "alignment",
    "--schedule": "scheduler",
    "--accept": "acceptance rule",
    "--verify": "verifier",
    "--kv": "KV backend",
}


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def commands() -> Iterator[str]:
    for page in PAGES:
        for block in blocks(page, "sh"):
            yield from (line for line in block.splitlines() if line.startswith("specframe "))
        prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
        yield from re.findall(r"`(specframe [a-z][^`]*)`", prose)
    for form in FORMS:
        yield from re.findall(r"(?:`|placeholder: )(specframe [a-z][^`\n]*)", form.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in with nothing but the examples, whose ``src`` can be imported from."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    with forgetting(tmp_path):
        yield tmp_path


@pytest.mark.wide
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name)
def test_python_blocks_run(page: Path, workshop: Path) -> None:
    """The Python blocks of a page run one after the other; those that start with a file's name are that file."""
    namespace: dict[str, object] = {"__name__": "documentation"}
    for number, block in enumerate(blocks(page, "python"), start=1):
        if not put(block, workshop):
            importlib.invalidate_caches()
            exec(compile(block, f"{name(page)}, block {number}", "exec"), namespace)


@pytest.mark.wide
@pytest.mark.parametrize("line", sorted(set(commands())))
def test_commands_parse(line: str) -> None:
    """A ``specframe`` command in the documentation names a command, options and strategies that exist."""
    command, context, words = command_of(shlex.split(line.partition(" #")[0])[1:])
    command.make_parser(context).parse_args(list(words))
    grids = {option for param in command.params if isinstance(param.type, ListOf) for option in param.opts}
    for option, value in itertools.pairwise(words):
        if option in STRATEGY_OPTIONS:
            for one in split_list(value) if option in grids else [value]:
                plugins.registry().make(STRATEGY_OPTIONS[option], one)


@pytest.mark.wide
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page: Path) -> None:
    """Links between pages lead to files and headings that exist."""
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, heading = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{name(page)} links to {link}"
        assert not heading or heading in anchors(target), f"{name(page)} links to {link}"


def resolves(name: str) -> bool:
    """Return whether a module, or a member of one, has this dotted name; attributes of classes may be annotations alone."""
    try:
        return pkgutil.resolve_name(name) is not None
    except ModuleNotFoundError:
        return False
    except AttributeError:
        owner, _, member = name.rpartition(".")
        one = pkgutil.resolve_name(owner) if resolves(owner) else None
        return isinstance(one, type) and any(member in vars(base).get("__annotations__", {}) for base in one.__mro__)


CLASSES = {
    name: f"{module.__name__}.{name}"
    for module in (importlib.import_module(f"specframe.contracts.{one.stem}") for one in CONTRACTS.glob("[a-z]*.py"))
    for name, one in vars(module).items()
    if isinstance(one, type) and one.__module__ == module.__name__
}
"""The classes of the contracts, by the name that pages call them."""


@functools.cache
def sources() -> list[str]:
    """Return the project's files of Python; environments beside them have thousands more."""
    folders = ("specframe", "plugins", "tests", "benchmarks", "examples", "docs")
    return [str(path) for folder in folders for path in (ROOT / folder).rglob("*.py")] + [str(ROOT / "conftest.py")]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_exist(page: Path) -> None:
    """What a page names in backticks is there: modules and their members, members of contracts, and files of Python."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    text = text.partition("### Modules that moved in 0.3")[0] if page.name == "stability.md" else text
    if page.name == "CHANGELOG.md" or page.parent.name == "changes":
        return  # what was
    told = re.findall(r"`(specframe(?:_\w+)?(?:\.\w+)+)(?:\(.*?\))?`", text)
    told += [CLASSES[one] + member for one, member in re.findall(r"`(\w+)(\.\w+)(?:\(.*?\))?`", text) if one in CLASSES]
    assert [one for one in told if not one.endswith((".py", ".html")) and not resolves(one)] == []
    for shown, link in re.findall(r"\[([^\]]+\.py)`?\]\(([^)#]+\.py)\)", text):
        assert Path(link).name == re.split(r"[/ `]", shown)[-1], f"{shown} leads to {link}"
    own = page.parent if page.parent.parent == ROOT / "plugins" else ROOT
    files = [file for file in sources() if file.startswith(str(own))]
    for file in re.findall(r"`([\w/-]+\.py)`", text):
        assert file in ELSEWHERE or any(path.endswith(f"/{file}") for path in files), file


ELSEWHERE = {"cnets.py", "cnets1.py", "prepare_data.py"}
"""Files of other projects that pages name."""


def own(page: Path) -> str:
    """Return the text of a page without code and generated parts."""
    return BLOCK.sub("", GENERATED.sub("", page.read_text(encoding="utf-8")))


def words(text: str) -> int:
    """Return how many words a text has; a bar of a table is none."""
    return len(re.findall(r"\S*\w\S*", text))


FORMER = re.compile(
    r"\b(?:beside (?:other )?rows|(?:that|not|let|all|drafts?|tokens?) stands?|dry runs?|gives? (?:its row back|way)|goes by|hollow"
    r"|(?:is|are|was|were|be|been|being) told(?! apart)|jud(?:ge[sd]?|ging)|ladders?|laid (?:out|in one row)|ledgers?"
    r"|packed attention|settl(?:es?|ed)|sharpen\w*|so many|spoilt|stood|strangers?|tak(?:es?|en) up|trials?|unpadded|verdicts?)\b"
    r"|; None: ",
    flags=re.IGNORECASE,
)
"""Words and a shape of sentences of earlier versions, in whose place the field has others. Told apart is plain English."""
TEXTS = re.compile(
    r'"""(.*?)"""|"((?:[^"\\\n]|\\.)*)"|' r"'((?:[^'\\\n]|\\.)*)'|#([^\n]*)",
    flags=re.DOTALL,
)
"""Docstrings, messages and comments of a file. A text without a space is a name, such as a key of a result file."""
NAMES = re.compile(r"`+[^`]*`+|\{[^{}]*\}|^ *\w+: ", flags=re.MULTILINE)
"""What of a text is code: names that others may call, values of messages, and the parameters of a list of arguments."""


def former(path: Path) -> list[str]:
    """Return the earlier words in a file: of a page all but code, of Python docstrings, messages and comments."""
    text = path.read_text(encoding="utf-8")
    texts = [own(path)] if path.suffix == ".md" else [found[found.lastindex or 0] for found in TEXTS.finditer(text)]
    plain = (" ".join(NAMES.sub(" ", one).split()) for one in texts if " " in one)
    return [word for one in plain for word in FORMER.findall(one)]


SPEAKING = {
    "pages": [*(name for name in MOST_WORDS if name != "docs/stability.md"), "plugins/*/README.md"],
    "sources": ["specframe/**/*.py", "plugins/*/specframe_*/**/*.py", "docs/*.py"],
    "tests": ["tests/*.py", "plugins/*/tests/*.py", "benchmarks/*.py", "examples/*.py"],
}
"""Where the project speaks, by patterns; docs/stability.md has the table of earlier names."""


@pytest.mark.wide(but=["pages", "sources"])
@pytest.mark.parametrize("place", SPEAKING)
def test_the_project_has_the_field_s_words(place: str) -> None:
    """No page, docstring, message or comment has a word of an earlier version in its prose."""
    paths = {path for pattern in SPEAKING[place] for path in ROOT.glob(pattern)} - {Path(__file__)}
    found = {name(path): former(path) for path in paths}
    assert {name: words for name, words in found.items() if words} == {}


def test_no_page_grows() -> None:
    """No page of the documentation has more words than its number, and every page that is not generated has a number."""
    pages = [page for page in (ROOT / "docs").glob("*.md") if not page.read_text(encoding="utf-8").startswith("<!-- W")]
    assert {name(page) for page in pages} - set(MOST_WORDS) == set()
    counted = {page: words(own(ROOT / page)) for page in MOST_WORDS}
    assert {page: count for page, count in counted.items() if count > MOST_WORDS[page]} == {}


@pytest.mark.parametrize("page", MOST_WORDS)
def test_paragraphs_and_lines_are_short(page: str) -> None:
    """Outside of tables, code and generated parts no paragraph has over 90 words, and no line over 140 characters."""
    prose = [line for line in own(ROOT / page).splitlines() if not line.startswith(("|", "#", "!["))]
    assert [line for line in prose if len(line) > 140] == []
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(prose))
    assert [one for one in paragraphs if words(one) > 90] == []


@pytest.mark.wide
def test_every_page_is_linked() -> None:
    """Every page of docs/ is linked from the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {page.name for page in (ROOT / "docs").glob("*.md") if f"(docs/{page.name})" not in text} == set()


@pytest.mark.parametrize(("page", "most"), [("README.md", 900), ("CONTRIBUTING.md", 2500)])
def test_first_pages_are_short(page: str, most: int) -> None:
    """The README is read in two screens, and the page for contributors in ten minutes."""
    assert len((ROOT / page).read_text(encoding="utf-8").split()) <= most


def test_pictures_of_pages_are_there() -> None:
    """Each picture that a page shows by an element of HTML is a file."""
    shown = {page: re.findall(r' src(?:set)?="([^"]+)"', BLOCK.sub("", page.read_text("utf-8"))) for page in PAGES}
    assert len(shown[ROOT / "README.md"]) == 2
    assert [place for page, places in shown.items() for place in places if not (page.parent / place).exists()] == []


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module docs/generate.py."""
    monkeypatch.setenv(plugins.LIMIT_VARIABLE, "")  # the module sets it: this puts it back afterwards
    monkeypatch.setattr(sys, "path", [*sys.path])
    specification = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class Stages(Observer):
    """Keeps the stages of the latest round that are not within another one, in the order in which they began first."""

    def __init__(self) -> None:
        self.depth, self.now, self.latest, self.all = 0, [], [], set()

    def enter(self, stage: str) -> None:
        self.now += [stage] if self.depth == 0 else []
        self.depth += 1

    def leave(self, stage: str) -> None:
        self.depth -= 1

    def round(self, report: RoundReport) -> None:
        self.latest, self.now = [*dict.fromkeys(self.now)], []
        self.all |= {*self.latest}


def test_the_picture_of_a_round_has_its_stages(generate: Any) -> None:
    """The pictures have the stages that an observer hears, in the order of a round with drafts, and are what is drawn."""
    heard, drawn = Stages(), generate.pictures.stages()
    pipe = Pipeline(target="tiny", drafter="prompt-lookup", draft_length=2, observers=[heard])
    list(pipe.generate(["import os\n"], max_new_tokens=8))
    assert {*drawn} == heard.all
    assert [stage for stage in drawn if stage != "prefill"] == heard.latest
    for theme in generate.pictures.COLOURS:
        file = ROOT / f"docs/images/round-{theme}.svg"
        assert file.read_text(encoding="utf-8") == generate.pictures.draw(theme), "run `make docs`"


def test_every_strategy_is_described() -> None:
    """docs/strategies.md has a section for every standard strategy, under its role, with all of its options."""
    text = (ROOT / "docs/strategies.md").read_text(encoding="utf-8")
    by_role = {
        part.partition("\n")[0].lower().rstrip("s"): part for part in re.split(r"^## ", text, flags=re.MULTILINE)
    }
    for entry in plugins.discover():
        if entry.distribution != "specframe-std" or entry.kind not in ROLES:
            continue
        role = by_role[entry.kind.lower().replace("policy", "policie")]
        section = re.search(rf"^### {entry.name}\n(.*?)(?=^### |\Z)", role, flags=re.DOTALL | re.MULTILINE)
        assert section is not None, f"{entry.kind} {entry.name} has no section"
        told = role.partition("\n### ")[0] + section[1]  # options of several strategies are before their sections
        missing = [option for option in entry.traits.options if f"| `{option}` |" not in told]
        assert missing == [], f"{entry.kind} {entry.name}"


def test_every_word_is_described() -> None:
    """docs/capabilities.md has every word that a standard strategy needs or offers, and names the role that offers it."""
    text = (ROOT / "docs/capabilities.md").read_text(encoding="utf-8")
    told = collections.defaultdict(str)
    for word, offered_by in re.findall(r"^\| `([\w-]+)` \| ([^|]*) \|", text, flags=re.MULTILINE):
        told[word] += offered_by
    standard = [entry for entry in plugins.discover() if entry.kind in ROLES]
    needed = {word for entry in standard for word in entry.traits.able("needs")}
    assert needed - {*told} == set()
    offered = {(word, entry.kind) for entry in standard for word in entry.traits.able("offers")}
    lacking = {(word, role) for word, role in offered if role.replace("policy", "polic") not in told[word]}
    assert lacking == set()


@pytest.mark.wide
def test_every_hook_is_documented() -> None:
    """Every hook follows the schema: purpose, Argument, Must, Must not; and is in docs/hooks.md."""
    text = (ROOT / "docs/hooks.md").read_text(encoding="utf-8")
    for hook in (hook for hook in vars(hookspecs) if hook.startswith("specframe_")):
        assert f"## {hook}\n" in text
        purpose, _, schema = (inspect.getdoc(getattr(hookspecs, hook)) or "").partition("\n\n")
        assert re.fullmatch(r"Offer .+\.", purpose), hook
        assert re.fullmatch(r"(?s)(Argument: .+\n)?Must: .+\nMust not: .+", schema), hook
