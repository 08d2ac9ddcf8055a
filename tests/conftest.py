"""What tests set because their models are tiny.

One thread per test process, and per process that a test starts, unless OMP_NUM_THREADS says more. Tokens are put into one row as
those of large models are, although it never pays.
"""

from __future__ import annotations

import os

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
