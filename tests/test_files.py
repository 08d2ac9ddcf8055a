"""Files that commands write: whole or not at all, one process at a time, never over what is somebody else's."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import invoke
from specframe_std.output_file import MARK, LockedFile, Output, acquire_lock

from specframe.errors import OptionError
from specframe.models import loading as models

HOLDER = """
import sys
from specframe_std.output_file import LockedFile
with LockedFile(sys.argv[1]).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


pytestmark = pytest.mark.usefixtures("here")


def everything() -> dict[str, bytes | None]:
    """Return what the working folder holds: every path, and the content of every file."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}


@contextmanager
def room(size: int) -> Iterator[None]:
    """Let no file grow beyond ``size`` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_content_is_replaced_whole() -> None:
    """A file gets new content, keeps its permissions, and nothing is left beside it; a link stays a link."""
    Path("real").write_text("before")
    Path("real").chmod(0o640)
    Path("link").symlink_to("real")
    Output("link").replace("after \ud800\n")
    assert Path("real").read_bytes() == b"after \\ud800\n"
    assert Path("real").stat().st_mode & 0o777 == 0o640
    assert everything().keys() == {"real", "link"}
    assert Path("link").is_symlink()


def test_no_room_leaves_what_was_there() -> None:
    """Where there is no room a file keeps its content, an appended line is there in whole or not at all."""
    output = LockedFile("out")
    output.append("one")
    with room(10), pytest.raises(OptionError, match=r"^--output: out cannot be written: File too large$"):
        output.replace("x" * 11)
    with room(10), pytest.raises(OptionError, match=r"^--output: out cannot be written: File too large; sorry$"):
        output.append("two and more", more="; sorry")
    output.append("three")
    assert everything() == {"out": b"one\nthree\n"}


@pytest.mark.wide
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_what_the_system_refuses_is_a_sentence(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any fault of the operating system is one sentence with its reason, and no draft is left."""

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OptionError) as fault:
        Output("out", "--report").replace("text")
    assert str(fault.value) == f"--report: out cannot be written: {os.strerror(number)}"
    assert everything() == {}


@pytest.mark.wide
def test_a_file_has_one_writer() -> None:
    """A second process is refused by a sentence with the first one's number; a killed process keeps nobody."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, "out"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "locked\n"
        for name in ("out", "./out", os.path.realpath("out")):
            with pytest.raises(OptionError) as fault, LockedFile(name).locked():
                pass
            assert str(fault.value) == (
                f"--output: {name} is being written by another run (process {holder.pid}): "
                "wait for its end, or name another"
            )
        with LockedFile("other").locked():
            holder.send_signal(signal.SIGKILL)
            holder.wait()
    with LockedFile("out").locked(), pytest.raises(OptionError, match=str(os.getpid())), LockedFile("out").locked():
        pass
    assert everything() == {}


def test_two_threads_replace_one_file() -> None:
    """Each thread writes its content by itself: both succeed, the file holds one of them whole, and nothing else is left."""
    both = threading.Barrier(2, timeout=1200)

    def parts(letter: bytes) -> Iterator[bytes]:
        yield letter
        both.wait()  # both are being written now
        yield letter

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(Output("out").replace, parts(letter)) for letter in (b"a", b"b")]:
            done.result()
    assert Path("out").read_bytes() in (b"aa", b"bb")
    assert os.listdir() == ["out"]


def test_a_lock_outlives_replacement() -> None:
    """A file that is replaced stays locked, since the lock is not its own."""
    with LockedFile("out").locked():
        Output("out").replace("new")
        with pytest.raises(OptionError, match="another run"), LockedFile("out").locked():
            pass


def test_a_lock_file_that_was_deleted_meanwhile_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever locks a file that its last holder deletes locks the file that is then there: nobody else can have it."""
    path, flock = tmp_path / "lock", fcntl.flock

    def late(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    descriptor = acquire_lock(path)
    assert isinstance(descriptor, int)
    assert os.path.samestat(path.stat(), os.fstat(descriptor))
    os.close(descriptor)


@pytest.mark.wide
def test_a_file_system_without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system has no locks a file is written all the same."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("specframe_std.output_file.fcntl.flock", refuse)
    with LockedFile("out").locked():
        Output("out").replace("new")
    assert everything() == {"out": b"new"}


FILES = {
    "run": ["run", "--output"],
    "run, report": ["run", "--report"],
    "verify": ["verify", "--output"],
    "trace": ["trace", "--output"],
}
"""What takes the name of a file."""
FOLDERS = {"compare": ["compare", "--output"], "reproduce": ["reproduce", "--output"]}
"""What takes the name of a folder."""
LONG = "x" * 300


def looping(name: str) -> str:
    """Make a symbolic link that leads to itself and return its name."""
    os.symlink(name, name)
    return name


def foreign(name: str, content: str = "precious\n") -> str:
    """Write a file that no command made and return its name."""
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(content)
    return name


FILE_FAULTS: dict[str, tuple[Callable[[], str], str]] = {
    "no name": (lambda: "", "expected the name of a file, got ''"),
    "no folder": (lambda: "no/such", "no/such cannot be written: expected a file in a folder that exists"),
    "a folder": (lambda: ".", "expected a file, got '.', which is a folder"),
    "a device": (lambda: os.devnull, f"expected a file, got '{os.devnull}', which is something else"),
    "name too long": (lambda: LONG, f"{LONG} cannot be written: File name too long"),
    "link to itself": (lambda: looping("loop"), "loop cannot be written: Too many levels of symbolic links"),
    "file as folder": (lambda: foreign("f") + "/out", "f/out cannot be written: Not a directory"),
    "foreign": (lambda: foreign("prompts.txt"), "prompts.txt "),
}
FOLDER_FAULTS: dict[str, tuple[Callable[[], str], str]] = {
    "no name": (lambda: "", "expected the name of a folder, got ''"),
    "a file": (lambda: foreign("f"), "expected a folder, got 'f', which is a file"),
    "name too long": (lambda: LONG, f"{LONG} cannot be written: File name too long"),
    "link to itself": (lambda: looping("loop"), "loop cannot be written: "),
    "file as folder": (lambda: foreign("f") + "/out", "f/out cannot be written: Not a directory"),
    "foreign results": (lambda: str(Path(foreign("mine/results.jsonl")).parent), "holds a results.jsonl of something"),
}
CASES = [
    *((FILES[command], *FILE_FAULTS[fault]) for command in FILES for fault in FILE_FAULTS),
    *((FOLDERS[command], *FOLDER_FAULTS[fault]) for command in FOLDERS for fault in FOLDER_FAULTS),
]
IDS = [f"{c}-{f}" for table, faults in ((FILES, FILE_FAULTS), (FOLDERS, FOLDER_FAULTS)) for c in table for f in faults]


@pytest.mark.wide
@pytest.mark.parametrize(("command", "make", "said"), CASES, ids=IDS)
def test_an_output_that_cannot_be_written_is_refused_at_once(
    command: list[str], make: Callable[[], str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one sentence and status 2, before a model is loaded, and nothing that was there has changed."""
    monkeypatch.setattr(models, "load_model", lambda *_: pytest.fail("a model was loaded"))
    name = make()
    before = everything()
    prompt = ["import os"] if command[0] != "reproduce" else []
    result = invoke(*command, name, *prompt)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(f"Error: {command[1]}: ")
    assert said in result.stderr
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)
    assert everything() == before


def write_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a report with one figure that nobody has to draw."""
    from specframe_lab.comparison.comparison_figures import Table
    from specframe_lab.report import images, report_page

    monkeypatch.setattr(report_page, "draw", lambda tables, schemes: {"speed": None})
    monkeypatch.setattr(images, "svg", lambda figure, name: "<svg></svg>")
    monkeypatch.setattr(images, "png", lambda figure: MARK.encode())
    monkeypatch.setattr(report_page, "html", lambda *_: MARK)
    table = Table("speed", "", "", "", [("ragged", 1.5)], ("scheme", "median"))
    report_page.write_report(SimpleNamespace(schemes=[]), {"speed": table}, "out")  # type: ignore[arg-type]


@pytest.mark.wide
def test_a_report_replaces_its_own_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of an earlier report are replaced or, where they are no longer drawn, deleted; what is foreign stays."""
    Path("out/figures").mkdir(parents=True)
    foreign("out/page.html")
    for name, content in (("photo.png", "mine"), ("notes.csv", "mine"), ("old.svg", MARK), ("old.png", MARK)):
        foreign(f"out/figures/{name}", content)
    for _ in range(2):
        write_report(monkeypatch)
    own = {"figures/speed.svg", "figures/speed.png", "figures/speed.csv", "report.html"}
    kept = {"figures", "figures/photo.png", "figures/notes.csv", "page.html"}
    assert everything().keys() == {"out", *(f"out/{name}" for name in own | kept)}
    assert Path("out/figures/speed.csv").read_bytes() == b"scheme,median\r\nragged,1.5\r\n"


@pytest.mark.wide
@pytest.mark.parametrize("name", ["figures/speed.svg", "figures/speed.png", "figures/speed.csv", "report.html"])
def test_a_report_leaves_foreign_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that somebody else made under a figure's or the page's name is refused in a sentence and stays."""
    Path("out/figures").mkdir(parents=True)
    foreign(f"out/{name}")
    with pytest.raises(OptionError, match=f"^--output: out/{name} was not made by specframe"):
        write_report(monkeypatch)
    assert Path("out", name).read_text() == "precious\n"


GONE = {
    "run": ("run", "x", "--output", "out.jsonl"),
    "report": ("run", "x", "--report", "out.json"),
    "trace": ("trace", "x"),
    "compare": ("compare", "x"),
    "verify": ("verify", "x", "--output", "out.jsonl"),
    "reproduce": ("reproduce",),
    "models add": ("models", "add", "mine", "."),
    "plugins new": ("plugins", "new", "mine"),
}


@pytest.mark.wide
@pytest.mark.parametrize("case", GONE)
def test_a_working_folder_that_is_gone(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that writes in a working folder which was deleted ends with one sentence and status 2."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    result = invoke(*GONE[case])
    assert (result.exit_code, result.stderr.count("Error: ")) == (2, 1), result.output
