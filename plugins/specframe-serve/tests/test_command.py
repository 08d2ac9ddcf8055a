"""The command: what it hands to the server, and where it warns."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from specframe_serve import serve_command

from specframe.cli import cli


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments with which the server is run; it is not."""
    given: list[Any] = []
    monkeypatch.setattr(serve_command, "run", lambda *arguments: given.extend(arguments))
    return given


def test_an_open_door_is_told_of(asked):
    """Whoever listens for other machines without a key is warned; a key, or this machine alone, needs no warning."""
    for host, key, warned in (("0.0.0.0", None, True), ("0.0.0.0", "secret", False), ("127.0.0.1", None, False)):
        given = ["serve", "--host", host, "--port", "0", *(["--api-key", key] if key else [])]
        outcome = CliRunner().invoke(cli, given)
        assert outcome.exit_code == 0, outcome.output
        assert ("Warning: listening at 0.0.0.0 without --api-key" in outcome.stderr) == warned


@pytest.mark.wide
def test_a_negative_grace_is_refused(asked):
    """The grace is a number of seconds of at least 0."""
    outcome = CliRunner().invoke(cli, ["serve", "--port", "0", "--grace", "-1"])
    assert outcome.exit_code == 2
    assert "--grace: expected a number of at least 0" in outcome.stderr
    assert not asked


@pytest.mark.wide(but=["given0-None"])
@pytest.mark.parametrize(("given", "seed"), [((), None), (("--seed", "0"), 0), (("--seed", "7"), 7)])
def test_the_servers_seed_is_the_one_asked_for(asked, given, seed):
    """Without the option requests without a seed follow from nothing; the option's default is no such choice."""
    outcome = CliRunner().invoke(cli, ["serve", "--port", "0", *given])
    assert outcome.exit_code == 0, outcome.output
    assert asked[-1] == seed
