"""The options of a run with their defaults, and the strategies that "auto" and None stand for.

Every default is here and nowhere else: the signature of :class:`specframe.Pipeline`, the options of the command line and the cells
of a grid read theirs from :data:`DEFAULTS`. Nothing here imports torch before a recipe is checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs

from specframe.values import LARGEST_SEED, flag, whole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specframe.contracts.roles import AcceptanceRule, Observer

NO_DRAFTER = "none"
"""The drafter of plain decoding."""

GREEDY_RULE = "greedy"
"""The acceptance rule of runs without a temperature: the one that costs least."""

SAMPLING_RULE = "block"
"""The acceptance rule of runs with a temperature: of the lossless ones that which accepts most."""

COMPARABLE_RULE = "gumbel"
"""The acceptance rule of sampled tokens that are compared id by id: its tokens are the same whatever was drafted."""

ADAPTIVE_LENGTH, FIXED_LENGTH = "goodput", "5"
"""The draft length where it changes no token, and where it does: a seed then has to give the same tokens again."""

MAX_NEW_TOKENS = 64
"""Tokens generated per prompt unless it stops before."""

GRAPHS = ("auto", "on", "off")
LAYERS = ("eager", "compiled", "auto")
GENERATION_CONFIG = ("auto", "none")
"""The words that options take, the default first."""


@attrs.frozen(eq=False)
class Recipe:
    """Every option of a run, as :class:`specframe.Pipeline` takes it. Strategies are names or objects."""

    target: Any = None
    drafter: Any = "auto"
    align: Any = "ragged"
    schedule: Any = None
    accept: Any = "auto"
    verify: Any = "chain"
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
    executor: Any = "local"

    def checked(self) -> Recipe:
        """Return the recipe after checking every option that is no strategy, model or device.

        Raises:
            OptionError: a value outside of the range that its option accepts.
        """
        from specframe.plugins import arguments  # it knows protocols, and so torch

        settings = "none" if self.generation_config is None else self.generation_config
        arguments.tokenizer(self.tokenizer)
        return attrs.evolve(
            self,
            batch_size=whole("batch_size", self.batch_size, 1),
            seed=whole("seed", self.seed, 0, LARGEST_SEED),
            observers=arguments.observers(self.observers),
            check=flag("check", self.check),
            graphs=arguments.one_of("graphs", self.graphs, GRAPHS),
            layers=arguments.one_of("layers", self.layers, LAYERS),
            generation_config=arguments.one_of("generation_config", settings, GENERATION_CONFIG),
        )

    def rule(self, greedy: bool) -> Any:
        """Return the acceptance rule of a run; ``greedy``: no request has a temperature."""
        return (GREEDY_RULE if greedy else SAMPLING_RULE) if is_auto(self.accept) else self.accept

    def length(self, rule: AcceptanceRule, drafter: Any) -> Any:
        """Return the draft length, or the policy, of a run under an acceptance rule."""
        if not is_auto(self.draft_length):
            return self.draft_length
        plain = isinstance(drafter, str) and drafter == NO_DRAFTER
        return ADAPTIVE_LENGTH if "draft-invariant" in rule.offers and not plain else FIXED_LENGTH


def is_auto(given: Any) -> bool:
    """Return whether a strategy is left open; an array, which compares with a text entry by entry, is none."""
    return isinstance(given, str) and given == "auto"


DEFAULTS = Recipe()
"""What is used where nothing else is asked for."""
