"""What tests set because their models are tiny.

One thread per test process, and per process that a test starts, unless OMP_NUM_THREADS says more. Tokens are put into one row as
those of large models are, although it never pays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
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


@pytest.fixture
def on_sim() -> Iterator[None]:
    """Have pipelines of the harness use copies of their models on the simulated device."""
    from specframe_testing import harness, suite_device

    with suite_device.running_on("sim"):
        harness.device()  # torch knows the device from here on, whichever test is the first of a process
        yield
