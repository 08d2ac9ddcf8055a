"""The test kit: fake and small random models, suites that a plugin's tests inherit, and a pytest plugin.

- :mod:`specframe_testing.fakes`: models and drafters on which logic is tested in milliseconds
- :mod:`specframe_testing.zoo`: small random models of real architectures
- :mod:`specframe_testing.harness`: decode requests, hold them against the reference decoder, count
- :mod:`specframe_testing.distribution`: sampled tokens, held against a small target's exact probabilities
- :mod:`specframe_testing.instrumentation`: the checks of invariants that the option ``check`` takes, and what they are made of
- :mod:`specframe_testing.conformance`: one suite per role, to subclass
- :mod:`specframe_testing.heads`: small heads in the published formats, and their suite
- :mod:`specframe_testing.device`: a simulated accelerator
- :mod:`specframe_testing.scaffold`: ``specframe plugins new``
- :mod:`specframe_testing.pytest_plugin`: fixtures and markers, active wherever specframe-testing is installed
"""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, hookimpl


@hookimpl
def specframe_register_commands(register: Register) -> None:
    register("plugins new", "specframe_testing.scaffold.scaffold_command:new")


@hookimpl
def specframe_register_options(register: Register) -> None:
    register("check", "specframe_testing.instrumentation.invariants:Checks")
