"""Guards around strategies: results are checked against the contract, and errors name the strategy and its distribution.

:func:`guard_all` puts an object around each strategy of a composition. It looks at types, shapes, dtypes and devices, which the
host knows, in every round. Numbers are looked at where that costs no synchronisation: on a CPU at once, and on other devices when
the round's transfer brings them to the host. What is at fault is told in one sentence; what the strategy raised is its cause.
Built-in strategies are guarded alike.
"""

from __future__ import annotations

from typing import Any

from specframe.contracts.drafts import Check, Numbers, Transfer
from specframe.engine.guards.base import Guard
from specframe.engine.guards.constraints import GuardedConstraint
from specframe.engine.guards.drafters import GuardedDrafter, GuardedPolicy
from specframe.engine.guards.schedulers import GuardedExecutor, GuardedScheduler
from specframe.engine.guards.storage import GuardedAlignment, GuardedAttention, GuardedBackend
from specframe.engine.guards.verifiers import GuardedRule, GuardedVerifier
from specframe.plugins.compose import Composition

GUARDS: dict[str, type[Guard]] = {
    one.kind: one
    for one in (
        GuardedDrafter,
        GuardedVerifier,
        GuardedRule,
        GuardedAlignment,
        GuardedScheduler,
        GuardedBackend,
        GuardedPolicy,
        GuardedExecutor,
        GuardedAttention,
        GuardedConstraint,
    )
}
"""The guard of each role, and those of executors and constraints."""


def guard(kind: str, strategy: Any) -> Any:
    """Return a strategy inside its guard; a guarded strategy is returned unchanged."""
    return strategy if isinstance(strategy, Guard) else GUARDS[kind](strategy)


def guard_all(use: Composition, checked: bool = False) -> Composition:
    """Return the composition with a guard around each of its strategies; ``checked``: the run is, and may wait for the device."""
    drafter = guard("drafter", use.drafter)
    drafter.waits = checked
    return Composition(
        drafter=drafter,
        verifier=guard("verifier", use.verifier),
        rule=guard("acceptance rule", use.rule),
        alignment=guard("alignment", use.alignment),
        scheduler=guard("scheduler", use.scheduler),
        policy=guard("draft-length policy", use.policy),
        kv=guard("KV backend", use.kv),
        attention=(
            tuple(guard("attention backend", one) for one in use.attention)
            if isinstance(use.attention, tuple)
            else guard("attention backend", use.attention)
        ),
        names=use.names,
    )


def numbers_check(use: Composition) -> Check:
    """Return what checks the numbers of a transfer, as the guards of a composition do: the draft's, the rule's, the alignment's."""
    guards: tuple[Any, ...] = use.drafter, use.rule, use.alignment

    def check(transfer: Transfer, numbers: Numbers) -> None:
        for one in guards:
            one.check_numbers(transfer, numbers)

    return check
