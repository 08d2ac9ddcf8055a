"""Fixtures and markers for everyone who has specframe installed. Nothing heavy is imported until a test asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from specframe_testing import suite_device

if TYPE_CHECKING:
    from types import ModuleType

    from specframe_testing.fakes import FakeModel

pytest.register_assert_rewrite("specframe_testing.conformance", "specframe_testing.harness")

MARKERS = {
    "cuda": "needs a CUDA device; skipped where there is none",
    "slow": "part of a wide matrix; leave it out with -m 'not slow'",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--specframe-device``: a project's own options have the common names."""
    parser.getgroup("specframe").addoption(
        "--specframe-device", default="cpu", metavar="NAME", help="device of specframe's suites: cpu, sim, cuda, cuda:N"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and set the suites' device."""
    suite_device.NAME = config.getoption("specframe_device")
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need CUDA on a machine without CUDA."""
    if item.get_closest_marker("cuda") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def tiny_target() -> FakeModel:
    """Return a fake target whose every token depends on all (token, position) pairs before it."""
    from specframe_testing.fakes import fake_target

    return fake_target()


@pytest.fixture(scope="session")
def tiny_draft(tiny_target: FakeModel) -> FakeModel:
    """Return a fake draft model that chooses as ``tiny_target`` does in two contexts of three."""
    from specframe_testing.fakes import fake_draft

    return fake_draft(tiny_target)


@pytest.fixture(scope="session")
def zoo() -> ModuleType:
    """Return the module of small random models of real architectures."""
    from specframe_testing import zoo

    return zoo


@pytest.fixture
def feeds() -> Any:
    """Return an observer that records what each round feeds; pass it to a pipeline in ``observers``."""
    from specframe_testing.harness import Feeds

    return Feeds()
