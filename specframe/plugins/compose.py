"""Turn names into strategies, and refuse combinations that cannot work before any model is loaded."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any, cast

import attrs

from specframe.errors import CompositionError, OptionError, PluginError, UnknownNameError, nearest
from specframe.plugins.entries import Entry
from specframe.plugins.recipe import PLAIN, Recipe, is_auto, own_budget
from specframe.plugins.registry import Registry, parse_specification
from specframe.value_checks import of_type, unwrap_guards

if TYPE_CHECKING:
    from specframe.contracts.attention import AttentionBackend
    from specframe.contracts.cache import KVBackend
    from specframe.contracts.drafts import Budget
    from specframe.contracts.numerics import Numerics
    from specframe.contracts.roles import (
        AcceptanceRule,
        Alignment,
        BudgetPolicy,
        Drafter,
        Scheduler,
        TreePolicy,
        Verifier,
    )

OPTIONS: Mapping[str, str] = {
    "drafter": "drafter",
    "verifier": "verify",
    "acceptance rule": "accept",
    "alignment": "align",
    "scheduler": "schedule",
    "KV backend": "kv",
    "draft-length policy": "draft_length",
    "executor": "executor",
    "attention backend": "attention",
    "constraint": "constraint",
}
"""The option of each role, and of other kinds that have one."""

FIELDS: Mapping[str, str] = {
    "drafter": "drafter",
    "verifier": "verifier",
    "acceptance rule": "rule",
    "alignment": "alignment",
    "scheduler": "scheduler",
    "KV backend": "kv",
    "draft-length policy": "policy",
    "attention backend": "attention",
}
"""The field of a composition that holds each role."""


@attrs.frozen
class Composition:
    """One strategy per role, and the storage they run on."""

    drafter: Drafter
    verifier: Verifier
    rule: AcceptanceRule
    alignment: Alignment
    scheduler: Scheduler
    policy: BudgetPolicy
    kv: KVBackend
    attention: AttentionBackend | tuple[AttentionBackend, ...] = ()
    """A tuple: those that "auto" chooses from for each forward; mask tensors are always among them."""
    numerics: Numerics | None = attrs.field(default=None, kw_only=True)
    """How everything is computed, or None: as models compute it."""
    names: Mapping[str, str] = attrs.field(kw_only=True)
    """What the strategy of each role is called in errors, see :func:`strategy_name`."""

    @property
    def lossless(self) -> bool:
        """Whether the output is the target's own."""
        return not self.lossy

    @property
    def lossy(self) -> list[str]:
        """The roles whose strategies change the output: a rule or alignment without "lossless", a KV backend that rounds keys."""
        changes = {
            "acceptance rule": "lossless" not in self.rule.offers,
            "alignment": "lossless" not in self.alignment.offers,
            "KV backend": "rounded" in self.kv.offers,
        }
        return [role for role, found in changes.items() if found]

    def sampling(self, registry: Registry, recipe: Recipe) -> Composition:
        """Return the strategies of a run with temperatures: the same but for those that "auto" chooses."""
        if not is_auto(recipe.accept):
            return self
        rule: AcceptanceRule = strategy(registry, "acceptance rule", recipe.rule(False, self.drafter))
        length = recipe.length(rule, self.drafter) if is_auto(recipe.draft_length) else None
        policy = self.policy if length is None else draft_length_policy(registry, length, self.drafter)
        names = {"acceptance rule": strategy_name(registry, "acceptance rule", recipe.accept, rule)}
        use = attrs.evolve(self, rule=rule, policy=policy, names={**self.names, **names})
        require_offers(registry, use)
        return use


def strategy(registry: Registry, kind: str, given: Any) -> Any:
    """Return a strategy from ``name``, ``name,key=value`` or an object that is one already.

    Raises:
        PluginError, OptionError: what was made, or given, has not the members that its role asks for.
    """
    from specframe.plugins.protocols import fault, require_members  # they know protocols, and so torch

    if not isinstance(given, str):
        number = "a whole number of at least 1, " if kind == "draft-length policy" else ""
        require_members(kind, given, OPTIONS[kind], f"{number}a name or ")
        return given
    made = registry.make(kind, given)
    if why := fault(kind, made):
        raise PluginError(f"{registry.entry(kind, parse_specification(given)[0])}: {why}")
    return made


def compose(registry: Registry, recipe: Recipe, drafter: Any) -> Composition:
    """Return the strategies of a run without temperatures, with the drafter of the recipe.

    Raises:
        UnknownNameError, OptionError: a name or option that nothing provides.
        CompositionError: a strategy needs what another does not offer.
    """
    recipe = recipe.named(registry)
    alignment: Alignment = strategy(registry, "alignment", recipe.align)
    rule: AcceptanceRule = strategy(registry, "acceptance rule", recipe.rule(greedy=True))
    kv: KVBackend = asked_for(registry, "KV backend", recipe.kv, alignment.kv, recipe, alignment)
    scheduler: Scheduler = asked_for(registry, "scheduler", recipe.schedule, alignment.scheduler, recipe, alignment)
    drafts: Drafter = strategy(registry, "drafter", drafter)
    length = recipe.length(rule, drafts if own_budget(drafts) else drafter)
    parts: dict[str, Any] = {
        "drafter": drafts,
        "verifier": strategy(registry, "verifier", recipe.verify),
        "acceptance rule": rule,
        "alignment": alignment,
        "scheduler": scheduler,
        "draft-length policy": draft_length_policy(registry, length, drafts),
        "KV backend": kv,
        "attention backend": attention_backend(registry, recipe.attention, kv),
    }
    names = {kind: strategy_name(registry, kind, getattr(recipe, OPTIONS[kind]), one) for kind, one in parts.items()}
    numerics = registry.make("option", "bitwise") if recipe.bitwise else None
    if recipe.check:
        registry.entry("option", "check")  # before any model is loaded
    use = Composition(**{FIELDS[kind]: one for kind, one in parts.items()}, names=names, numerics=numerics)
    require_views(use, recipe.bitwise)
    require_offers(registry, use)
    return use


def strategy_name(registry: Registry, kind: str, given: Any, made: Any) -> str:
    """Return a strategy's name for errors: the text or path it was asked for by, else its registered name, else that of its
    class."""
    given = os.fspath(given) if isinstance(given, os.PathLike) else given
    if isinstance(given, str) and not is_auto(given) and not is_number(given):
        return given
    entry = registry.entry_of(kind, made)
    return entry.name if entry else type(unwrap_guards(made)).__name__


def attention_backend(registry: Registry, given: Any, kv: KVBackend) -> AttentionBackend | tuple[AttentionBackend, ...]:
    """Return the attention backend asked for. Where that is left open, those that "auto" chooses from: for a store of pages alone
    the one that reads nothing else, if some plugin has one."""
    if not is_auto(given):
        backend: AttentionBackend = strategy(registry, "attention backend", given)
        return backend
    words, views = {entry.name: offered_words(entry) for entry in registry.of("attention backend")}, views_of(kv)
    own = [name for name, offers in words.items() if "dense" not in offers and views <= offers]
    if own and "dense" not in views:
        return strategy(registry, "attention backend", own[0])
    reading = [name for name, offers in words.items() if "masks" not in offers and reads(offers, views)]
    return tuple(strategy(registry, "attention backend", name) for name in reading)


def views_of(kv: KVBackend) -> Set[str]:
    """Return the capabilities of what a KV backend's stores hand out."""
    return kv.offers & VIEWS or {"dense"}


def require_views(use: Composition, bitwise: bool) -> None:
    """Raise :class:`CompositionError` unless the attention backend reads what the KV backend hands out, or pages of it gathered, by
    kernels that do not depend on the shape of a batch where the run is ``bitwise``."""
    backend, views = use.attention, views_of(use.kv)
    name, kv_name = use.names["attention backend"], use.names["KV backend"]
    if isinstance(backend, tuple):
        return
    if not reads(backend.offers, views):
        raise CompositionError(
            f"attention backend {name!r} reads {_views(backend.offers & VIEWS)} and KV backend {kv_name!r} hands out "
            f"{_views(views)}: expected one that reads them"
        )
    if bitwise and "dense" in views and "masks" not in backend.offers:
        raise CompositionError(
            f"bitwise: attention backend {name!r} has kernels that depend on the shape of a batch: expected one with masks"
        )


def reads(offers: Set[str], views: Set[str]) -> bool:
    """Return whether an attention backend with these capabilities reads a store's views: otherwise pages are gathered."""
    return "dense" in offers or bool(views & offers)


def _views(words: Set[str]) -> str:
    return " or ".join(f"{word} views" for word in sorted(words)) or "no views"


def asked_for(registry: Registry, kind: str, given: Any, own: str, recipe: Recipe, alignment: Alignment) -> Any:
    """Return the strategy given for a role, else the one that an alignment asks for; raise :class:`PluginError` where it is not
    there."""
    if given is None:
        try:
            registry.entry(kind, parse_specification(own)[0])
        except UnknownNameError as fault:
            align = strategy_name(registry, "alignment", recipe.align, alignment)
            raise PluginError(f"alignment {align!r} asks for a {kind} that is not installed: {fault}") from fault
    return strategy(registry, kind, own if given is None else given)


VIEWS = frozenset({"dense", "paged"})
"""The capabilities of what a KV store hands out."""

ASKED_OF: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("scatter", "append", "move", "grow", "gather", "dense", "paged"), ("KV backend",)),
    **dict.fromkeys(("distinct", "independent", "prunable"), ("acceptance rule",)),
    "tree": ("verifier", "acceptance rule", "alignment"),
    "hidden": ("verifier",),
    "share": ("alignment",),
    "logits": (),
}
"""The roles that have to offer a word when another needs it. None has to offer "logits": a draft without is certain. A word that
is not here is a plugin's own: any other role may offer it."""


def require_offers(registry: Registry, use: Composition) -> None:
    """Raise :class:`CompositionError` if a strategy needs a word that roles in charge of it do not offer, and name what does."""
    roles = {kind: one for kind, field in FIELDS.items() if not isinstance(one := getattr(use, field), tuple)}
    for kind, one in roles.items():
        for word in sorted(one.needs):
            asked = ASKED_OF.get(word)
            others = [other for other in roles if other != kind] if asked is None else asked
            lacking = [other for other in others if word not in roles[other].offers]
            if lacking and (asked is not None or len(lacking) == len(others)):
                whom = f"no other strategy does{nearest(word, ASKED_OF)}"
                if asked:
                    all_asked = {one for one in roles[kind].needs if lacking[0] in ASKED_OF.get(one, ())}
                    able_to = " or ".join(map(repr, able(registry, lacking[0], all_asked))) or "none that is installed"
                    whom = f"{lacking[0]} {use.names[lacking[0]]!r} does not offer it, as {able_to} does"
                raise CompositionError(f"{kind} {use.names[kind]!r} needs {word!r} to be offered, and {whom}")


def is_number(given: Any) -> bool:
    """Return whether a draft length is a number, as such or as text."""
    return of_type(given, int) or (
        isinstance(given, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,300}\s*", given) is not None
    )


def draft_length_policy(registry: Registry, given: Any, drafter: Any = None) -> BudgetPolicy:
    """Return the policy for a number of draft tokens, a policy's name or an object; a drafter of trees says how many nodes."""
    if is_number(given):
        if int(given) < 1:
            raise OptionError(
                f"draft length: expected at least 1, got {int(given)}; for plain decoding use the drafter {PLAIN!r}"
            )
        if int(given) > sys.maxsize:
            raise OptionError(f"draft length: expected at most {sys.maxsize:,}, got a number beyond it")
        own = own_budget(drafter, int(given))
        given = f"{registry.default('fixed draft length')},length={int(given)}" + (
            f",nodes={own.nodes}" if own and own.nodes > int(given) else ""
        )
    policy: BudgetPolicy = strategy(registry, "draft-length policy", given)
    if policy.maximum.depth < 0:
        name = strategy_name(registry, "draft-length policy", given, policy)
        raise PluginError(f"draft-length policy {name!r}: expected a maximum of at least 0, got {policy.maximum.depth}")
    if "trees" in policy.offers:
        over_trees = cast("TreePolicy", policy)
        if (
            most := own_tree(drafter, over_trees.longest)
        ) != policy.maximum:  # the object may have drafted others before
            over_trees.draft_trees(most)
    return policy


def own_tree(drafter: Any, deepest: int) -> Budget:
    """Return the budget of a drafter's own tree, no deeper than so; of chains that of this length."""
    from specframe.contracts.drafts import Budget  # torch comes with it, which is there where policies are made

    own = own_budget(drafter)
    if own is not None and own.depth > deepest:
        own = own_budget(drafter, deepest)
    return own if own is not None and own.nodes > own.depth else Budget(deepest)


def able(registry: Registry, kind: str, words: Set[str]) -> list[str]:
    """Return the names of the strategies of a kind that offer all these capabilities, as far as their classes say."""
    return sorted({entry.name for entry in registry.of(kind) if words <= offered_words(entry)})


def offered_words(entry: Entry) -> Set[str]:
    """Return the capabilities that a strategy's class offers, none where it cannot be used."""
    try:
        return entry.said.offers or frozenset()
    except PluginError:
        return frozenset()
