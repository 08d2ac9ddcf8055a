"""The options of a run with their defaults.

Every default is here and nowhere else: the signature of :class:`specframe.Pipeline`, the options of the command line and the cells
of a grid read theirs from :data:`DEFAULTS`. "auto" chooses the strategies that plugins register as defaults.
Nothing here imports torch before a recipe is checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs

from specframe.errors import OptionError, literal
from specframe.plugins.registry import Registry, registry
from specframe.value_checks import LARGEST_SEED, byte_count, flag, list_of, one_of, whole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specframe.contracts.drafts import Budget
    from specframe.contracts.roles import AcceptanceRule, Drafter, Observer

FIXED_LENGTH = "5"
"""Tokens drafted per round where an adaptive length would change tokens: a seed has to give the same tokens again."""

PLAIN = "none"
"""The name for plain decoding where a drafter is asked for; None is the same."""

FOR_TREES = {"prunable": "sampling with trees", "tree": "sampling with drawn trees"}
"""The purposes of acceptance rules for runs with a temperature whose drafter needs such a word."""

MAX_NEW_TOKENS = 64
"""Tokens generated per prompt unless it stops before."""

GRAPHS = ("auto", "on", "off")
LAYERS = ("auto", "eager", "traced", "compiled")
ROUNDS = ("auto", "deferred", "synchronous")
GENERATION_CONFIG = ("auto", "none")
"""The words that options take, the default first."""


@attrs.frozen(eq=False)
class Recipe:
    """Every option of a run, as :class:`specframe.Pipeline` takes it. Strategies are names or objects."""

    target: Any = "auto"
    drafter: Any = "auto"
    align: Any = "auto"
    schedule: Any = None
    accept: Any = "auto"
    verify: Any = "auto"
    kv: Any = None
    batch_size: int = 8
    draft_length: Any = "auto"
    device: str = "auto"
    dtype: str = "auto"
    seed: int = 0
    tokenizer: PreTrainedTokenizerBase | None = None
    observers: Iterable[Observer] = ()
    check: bool = False
    attention: Any = "auto"
    graphs: str = GRAPHS[0]
    layers: str = LAYERS[0]
    generation_config: str | None = GENERATION_CONFIG[0]
    executor: Any = "auto"
    bitwise: bool = False
    load_options: Any = None
    constraint: Any = None
    memory: Any = None
    rounds: str = ROUNDS[0]

    def checked(self) -> Recipe:
        """Return the recipe; raise :class:`OptionError` for an option, no strategy, model or device, that is outside of its
        range."""
        from specframe.plugins.protocols import require_members  # it knows torch

        observers = list_of("observers", self.observers, "a list of observers")
        for place, one in enumerate(observers):
            require_members("observer", one, f"observers[{place}]")
        if (given := self.tokenizer) is not None and not (callable(given) and callable(getattr(given, "decode", None))):
            raise OptionError(
                f"tokenizer: expected a loaded tokenizer, which can be called and can decode, got {literal(given)}"
            )
        settings = "none" if self.generation_config is None else self.generation_config
        checked = attrs.evolve(
            self,
            batch_size=whole("batch_size", self.batch_size, 1),
            seed=whole("seed", self.seed, 0, LARGEST_SEED),
            observers=observers,
            check=flag("check", self.check),
            graphs=one_of("graphs", self.graphs, GRAPHS),
            layers=one_of("layers", self.layers, LAYERS),
            rounds=one_of("rounds", self.rounds, ROUNDS),
            generation_config=one_of("generation_config", settings, GENERATION_CONFIG),
            bitwise=flag("bitwise", self.bitwise),
            memory=None if self.memory is None else byte_count("memory", self.memory),
        )
        if checked.bitwise and checked.layers == "compiled":
            raise OptionError("bitwise: expected no layers 'compiled', whose kernels depend on the shape of a batch")
        return attrs.evolve(checked, layers="eager") if checked.bitwise else checked

    def named(self, known: Registry) -> Recipe:
        """Return the recipe with the alignment, verifier and executor that "auto" chooses."""
        purposes = {"align": "alignment", "verify": "verifier", "executor": "executor"}
        left_open = {option: purpose for option, purpose in purposes.items() if is_auto(getattr(self, option))}
        chosen: dict[str, Any] = {option: known.default(purpose) for option, purpose in left_open.items()}
        return attrs.evolve(self, **chosen)

    def rule(self, greedy: bool, drafter: Drafter | None = None) -> Any:
        """Return the acceptance rule of a run with a drafter; ``greedy``: no request has a temperature."""
        if not is_auto(self.accept):
            return self.accept
        needs = drafter.needs if drafter else frozenset()
        of_trees = next((FOR_TREES[word] for word in FOR_TREES if word in needs), "sampling")
        return registry().default("greedy decoding" if greedy else of_trees)

    def length(self, rule: AcceptanceRule, drafter: Any) -> Any:
        """Return the draft length, or the policy, of a run under an acceptance rule."""
        if not is_auto(self.draft_length):
            return self.draft_length
        if own := own_budget(drafter):
            return str(own.depth)
        plain = isinstance(drafter, str) and drafter == registry().default("plain decoding")
        adapts = "draft-invariant" in rule.offers and not plain
        return registry().default("adaptive draft length") if adapts else FIXED_LENGTH


def own_budget(drafter: Any, depth: int | None = None) -> Budget | None:
    """Return the budget that a drafter asks for, see :class:`specframe.contracts.roles.SizedDrafter`, or None for any."""
    if drafter is None or isinstance(drafter, str) or "budget" not in drafter.offers:
        return None
    budget: Budget | None = drafter.budget(depth)
    return budget


def is_auto(given: Any) -> bool:
    """Return whether a strategy is left open; an array, which compares with a text entry by entry, is none."""
    return isinstance(given, str) and given == "auto"


DEFAULTS = Recipe()
"""What is used where nothing else is asked for."""
