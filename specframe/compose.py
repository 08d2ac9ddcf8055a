"""Turn names into strategies, and refuse combinations that cannot work before any model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from specframe.contract import require_members
from specframe.errors import CompositionError, OptionError
from specframe.plugins import Registry
from specframe.protocols import (
    AcceptanceRule,
    Alignment,
    Drafter,
    DraftLengthPolicy,
    KVBackend,
    Scheduler,
    Verifier,
)
from specframe.values import of_type

OPTIONS: Mapping[str, str] = {
    "drafter": "drafter",
    "verifier": "verify",
    "acceptance rule": "accept",
    "alignment": "align",
    "scheduler": "schedule",
    "KV backend": "kv",
    "draft-length policy": "draft_length",
}
"""The option of each role."""

SAMPLING_RULE = "block"
"""The acceptance rule of runs that sample and name none: lossless, and of those that are the one that accepts most."""


@attrs.frozen
class Composition:
    """One strategy per role, and the storage they run on."""

    drafter: Drafter
    verifier: Verifier
    rule: AcceptanceRule
    alignment: Alignment
    scheduler: Scheduler
    policy: DraftLengthPolicy
    kv: KVBackend

    @property
    def lossless(self) -> bool:
        """Whether the output is the target's own: what the acceptance rule and the alignment both promise."""
        return self.rule.lossless and self.alignment.lossless

    def ruled(self, registry: Registry, rule: str, auto: bool) -> Composition:
        """Return the same strategies under another acceptance rule; ``auto``: the draft length is what that rule asks for."""
        judge: AcceptanceRule = strategy(registry, "acceptance rule", rule)
        policy = draft_length_policy(registry, auto_length(judge, self.drafter)) if auto else self.policy
        return attrs.evolve(self, rule=judge, policy=policy)


def strategy(registry: Registry, kind: str, given: Any) -> Any:
    """Return a strategy from ``name``, ``name,key=value`` or an object that is one already.

    Raises:
        OptionError: an object that has not the members its role asks for.
    """
    if isinstance(given, str):
        return registry.make(kind, given)
    number = "a whole number of at least 1, " if kind == "draft-length policy" else ""
    require_members(kind, given, OPTIONS[kind], f"{number}a name or ")
    return given


def compose(
    registry: Registry,
    *,
    drafter: Any,
    verify: Any,
    accept: Any,
    align: Any,
    schedule: Any,
    kv: Any,
    draft_length: Any,
) -> Composition:
    """Return the strategies asked for; ``schedule`` and ``kv`` default to what the alignment asks for, ``draft_length`` "auto" to
    what the acceptance rule and the drafter ask for.

    Raises:
        UnknownNameError, OptionError: a name or option that nothing provides.
        CompositionError: the KV backend cannot do what the alignment needs.
    """
    alignment: Alignment = strategy(registry, "alignment", align)
    rule: AcceptanceRule = strategy(registry, "acceptance rule", "greedy" if accept == "auto" else accept)
    kv = alignment.kv if kv is None else kv
    backend: KVBackend = strategy(registry, "KV backend", kv)
    if not alignment.requires <= backend.provides:
        raise CompositionError(
            f"alignment {_name(align)!r} cannot run on KV backend {_name(kv)!r}: it needs one that can "
            f"{' and '.join(sorted(alignment.requires - backend.provides))}, as {_or(fitting_backends(registry, alignment))} can"
        )
    return Composition(
        drafter=strategy(registry, "drafter", drafter),
        verifier=strategy(registry, "verifier", verify),
        rule=rule,
        alignment=alignment,
        scheduler=strategy(registry, "scheduler", alignment.scheduler if schedule is None else schedule),
        policy=draft_length_policy(registry, auto_length(rule, drafter) if draft_length == "auto" else draft_length),
        kv=backend,
    )


def auto_length(rule: AcceptanceRule, drafter: Any) -> str:
    """Return what the draft length "auto" is: a fixed one where tokens, and with them what a seed gives, depend on it."""
    return "goodput" if rule.invariant and drafter != "none" else "5"


def draft_length_policy(registry: Registry, given: Any) -> DraftLengthPolicy:
    """Return the policy for a number of draft tokens, a policy's name or an object."""
    if of_type(given, int) or (isinstance(given, str) and given.strip().lstrip("+-").isdigit()):
        if int(given) < 1:
            raise OptionError(
                f"draft length: expected at least 1, got {int(given)}; for plain decoding use the drafter 'none'"
            )
        given = f"fixed,length={int(given)}"
    return strategy(registry, "draft-length policy", given)


def fitting_backends(registry: Registry, alignment: Alignment) -> list[str]:
    """Return the names of the KV backends that can do what an alignment needs."""
    entries = registry.entries.get("KV backend", {})
    return sorted(name for name, entry in entries.items() if alignment.requires <= entry.factory.provides)  # type: ignore[attr-defined]


def _name(given: Any) -> str:
    return given.partition(",")[0] if isinstance(given, str) else type(given).__name__


def _or(names: list[str]) -> str:
    return " or ".join(map(repr, names)) or "none that is installed"
