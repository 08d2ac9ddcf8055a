"""``specframe plugins new``: the package that it writes for each role works, and its tests pass."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from command_line import invoke
from specframe_testing import fakes, harness, zoo
from specframe_testing.scaffold.package import write
from specframe_testing.scaffold.templates import TEMPLATES

from specframe.errors import OptionError, UnknownNameError
from specframe.plugins.compose import OPTIONS
from specframe.plugins.registry import registry

pytest_plugins = ["pytester"]

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package ``my-ROLE`` per role, written to a folder, with the metadata that pip would write."""
    site = tmp_path / "site"
    site.mkdir()
    for role in TEMPLATES:
        folder = write(f"my-{role}", role, tmp_path)
        monkeypatch.syspath_prepend(folder / "src")
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        info = site / f"my_{role}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
        points = [f"{name} = {module}" for name, module in project["entry-points"]["specframe"].items()]
        (info / "entry_points.txt").write_text("\n".join(["[specframe]", *points]))
    monkeypatch.syspath_prepend(site)
    registry.cache_clear()
    yield tmp_path
    registry.cache_clear()
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


@pytest.mark.wide
@pytest.mark.parametrize("role", TEMPLATES)
def test_a_package_is_written(role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package has a project file, a hook, a strategy and tests, and the command says what comes next."""
    monkeypatch.chdir(tmp_path)
    result = invoke("plugins", "new", "my-own", "--role", role)
    assert result.exit_code == 0, result.stderr
    written = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert set(written) == {
        "my-own/pyproject.toml",
        "my-own/README.md",
        "my-own/src/my_own/__init__.py",
        f"my-own/src/my_own/{role}.py",
        f"my-own/tests/test_{role}.py",
    }
    assert f"def {TEMPLATES[role].hook}(" in written["my-own/src/my_own/__init__.py"]
    assert "pip install -e 'my-own[test]'" in result.stdout  # zsh takes unquoted brackets for a pattern
    assert f"specframe run {TEMPLATES[role].option} my-own\n" in result.stdout
    for path, text in written.items():
        assert "$" not in text, path
        if path.endswith(".py"):
            compile(text, path, "exec")


@pytest.mark.wide
def test_an_unknown_role_is_answered_with_the_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A role that there is none of is one sentence, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    result = invoke("plugins", "new", "my-own", "--role", "verifyer")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: --role: expected one of drafter, verifier, rule, alignment, ")
    assert result.stderr.endswith(", got 'verifyer'\n")
    with pytest.raises(UnknownNameError, match=r"^unknown role 'verifyer': .*did you mean 'verifier'\?$"):
        write("my-own", "verifyer")
    assert not list(tmp_path.iterdir())


@pytest.mark.wide
@pytest.mark.parametrize("role", TEMPLATES)
def test_what_is_written_decodes(role: str, installed: Path) -> None:
    """Installed, each strategy is chosen by its name, listed with its docstring, and decodes the reference's tokens."""
    template = TEMPLATES[role]
    entry = registry().entry(template.role, f"my-{role}")
    assert entry.traits.summary
    options = {"drafter": DRAFT, "batch_size": 2, OPTIONS[template.role]: f"my-{role}"}
    asked = harness.requests(harness.random_prompts([5, 1, 9], 61), [9, 4, 12])
    target = TARGET
    if role == "attention":  # the fakes attend by themselves
        target = zoo.build("mistral")
        options["drafter"] = zoo.good_draft(target)
    harness.check(harness.pipeline(target, **options), asked)


@pytest.mark.wide(but=["drafter-span=0"])
@pytest.mark.parametrize(("role", "option"), [("drafter", "span=0"), ("policy", "maximum=no")])
def test_wrong_options_are_sentences(role: str, option: str, installed: Path) -> None:
    """A value that the example's option does not take is reported with the option's name."""
    with pytest.raises(OptionError, match=rf"{option.partition('=')[0]}: expected a whole number"):
        registry().make(TEMPLATES[role].role, f"my-{role},{option}")


class Imports:
    """Has what a run of pytest within a test imports of libraries stay: classes of models that are kept look for their modules."""

    def __init__(self) -> None:
        self.kept: dict[str, ModuleType] = {}

    def pytest_unconfigure(self) -> None:
        """Note the modules before pytester takes them out."""
        self.kept = {name: one for name, one in sys.modules.items() if name.startswith(("torch", "transformers"))}


@pytest.fixture
def imports() -> Iterator[Imports]:
    """Notes modules, and puts them back when pytester has ended."""
    noted = Imports()
    yield noted
    sys.modules.update(noted.kept)


@pytest.mark.slow
@pytest.mark.parametrize("role", TEMPLATES)
def test_the_suite_that_is_written_passes(
    role: str, imports: Imports, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tests of a package that was just written pass, and there are some."""
    folder = write(f"new-{role}", role, pytester.path)
    monkeypatch.syspath_prepend(folder / "src")
    arguments = "-q", "-p", "no:xdist", str(folder / "tests")
    outcomes = pytester.runpytest_inprocess(*arguments, plugins=[imports]).parseoutcomes()
    assert outcomes["passed"] > 20
    assert set(outcomes) <= {"passed", "skipped"}
