"""What tests set because their models are tiny.

One thread per test process, and per process that a test starts, unless OMP_NUM_THREADS says more. Tokens are put into one row as
those of large models are, although it never pays.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Set it in the processes that run tests; the one that hands tests out has no need of torch."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import torch

    from specframe.model import padding_free

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    padding_free.LAYING_OUT = 0


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def saved_pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name a saved target and a draft that often agrees with it; one token is one character."""
    from specframe_testing import zoo

    return zoo.save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and tokenizers are loaded once a process, and there is no hub."""
    import fuzzing

    from specframe.models import loading

    for name in ("load_model", "load_tokenizer"):
        monkeypatch.setattr(loading, name, functools.partial(fuzzing.loaded, getattr(loading, name)))
    monkeypatch.setattr("specframe.models.hub.fault", lambda *_: OSError("no network"))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return what installs a distribution NAME with a plugin, the module NAME_plugin, for this test alone."""
    from specframe.plugins.registry import registry

    def install(name: str, code: str, requires: str = "") -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (tmp_path / f"{name}_plugin.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}")
        (info / "entry_points.txt").write_text(f"[specframe]\n{name} = {name}_plugin\n")

    monkeypatch.syspath_prepend(tmp_path)
    registry.cache_clear()
    yield install
    registry.cache_clear()
    for name in [name for name in sys.modules if name.endswith("_plugin")]:
        del sys.modules[name]


@pytest.fixture
def on_sim() -> Iterator[None]:
    """Have pipelines of the harness use copies of their models on the simulated device."""
    from specframe_testing import harness, suite_device

    with suite_device.running_on("sim"):
        harness.device()  # torch knows the device from here on, whichever test is the first of a process
        yield
