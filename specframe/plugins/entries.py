"""The kinds of strategies, and what a plugin offers under them: entries, aliases of models, and defaults."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from specframe.errors import PluginError, literal, sentence
from specframe.plugins.sources import Said, said
from specframe.plugins.traits import Traits, traits_of

ROLES: Mapping[str, str] = {
    "drafter": "specframe_register_drafters",
    "verifier": "specframe_register_verifiers",
    "acceptance rule": "specframe_register_acceptance_rules",
    "alignment": "specframe_register_alignments",
    "scheduler": "specframe_register_schedulers",
    "KV backend": "specframe_register_kv_backends",
    "draft-length policy": "specframe_register_draft_length_policies",
    "attention backend": "specframe_register_attention_backends",
}
"""The eight roles, by the name errors use, and the hook each is registered through."""

OTHERS: Mapping[str, str] = {
    "observer": "specframe_register_observers",
    "executor": "specframe_register_executors",
    "command": "specframe_register_commands",
    "checkpoint": "specframe_register_checkpoints",
    "constraint": "specframe_register_constraints",
    "state kind": "specframe_register_state_kinds",
    "option": "specframe_register_options",
    "position kind": "specframe_register_position_kinds",
}
"""The other kinds, which take no part in a round, and the hook each is registered through."""


PURPOSES: Mapping[str, str] = {
    "alignment": "alignment",
    "verifier": "verifier",
    "executor": "executor",
    "worker processes": "executor",
    "plain decoding": "drafter",
    "draft model": "drafter",
    "draft model of another vocabulary": "drafter",
    "prompt lookup": "drafter",
    "early exit": "drafter",
    "greedy decoding": "acceptance rule",
    "sampling": "acceptance rule",
    "sampling with trees": "acceptance rule",
    "sampling with drawn trees": "acceptance rule",
    "fixed draft length": "draft-length policy",
    "adaptive draft length": "draft-length policy",
    "target": "model",
}
"""The purposes that plugins register defaults for, and the kind of the strategy, or "model". The default for "fixed draft length"
has an option ``length``, that for "prompt lookup" an option ``ngram``, that for "worker processes" an option ``count``."""


@attrs.frozen
class Entry:
    """One registered name: what makes it and which distribution offers it."""

    kind: str
    name: str
    reference: Callable[..., Any] | str
    distribution: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of {self.distribution}"

    @property
    def factory(self) -> Callable[..., Any]:
        """The factory, imported where it was given as ``"package.module:Name"``; raises :class:`PluginError` where it does not
        import."""
        made = self.reference
        if isinstance(made, str):
            module, _, attribute = made.partition(":")
            try:
                made = getattr(importlib.import_module(module), attribute)
            except (Exception, SystemExit) as error:  # a third party's module may raise anything
                raise PluginError(
                    f"{self} refers to {self.reference!r}, which does not import: {sentence(error)}"
                ) from error
        if not callable(made):
            raise PluginError(
                f'{self}: register() takes a class, a function or where one is, as "package.module:Name", got {literal(made)}'
            )
        return made

    @property
    def said(self) -> Said:
        """Its summary and what it offers; its class is imported if the source does not say, and raises as :attr:`factory` does."""
        found = said(self.reference) if isinstance(self.reference, str) else None
        return found or Said(self.traits.summary, self.traits.offers)

    @property
    def traits(self) -> Traits:
        """What its class says of it; raises as :attr:`factory` does."""
        return traits_of(self.factory)


@attrs.frozen
class ModelAlias:
    """A short name for a model's location, and the target it drafts for, if it does."""

    alias: str
    location: str
    target: str | None
    distribution: str

    def __str__(self) -> str:
        return f"model {self.alias!r} of {self.distribution}"


@attrs.frozen
class Default:
    """The specification of the strategy, or the alias of the model, that a distribution registers for a purpose."""

    specification: str
    distribution: str

    def __str__(self) -> str:
        return f"{self.specification!r} by {self.distribution}"


def the_one(offers: Sequence[Entry] | Sequence[ModelAlias]) -> Any:
    """Return the only offer of a name; raise :class:`PluginError` that names all distributions where there are several."""
    if len(offers) == 1:
        return offers[0]
    called = str(offers[0]).removesuffix(f" of {offers[0].distribution}")
    owners = list(dict.fromkeys(offer.distribution for offer in offers))
    if len(owners) == 1:
        raise PluginError(f"{called} is registered {len(offers)} times by {owners[0]}, each time as something else")
    both = "both " if len(owners) == 2 else ""
    raise PluginError(f"{called} is offered by {both}{' and '.join(owners)}: uninstall all of them but one")
