"""``model.generate`` in the place of which drafts decode."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch
from transformers import StoppingCriteriaList, StopStringCriteria

from specframe.drop_in import Assisted, assisted
from specframe.errors import CompositionError, OptionError, literal
from specframe.observe.counts import RunReport


class Generate:
    """Has a model's ``generate`` decode with drafts. It is called as a method of the model, of which copies have one of their own.

    Args:
        usual: the function ``generate`` before, called with the model first.
        drafted: what decodes with drafts, or None once it was removed.
    """

    __name__ = "generate"
    """By this name a pickle looks the method up, and finds the one of the model's class."""

    def __init__(self, usual: Callable[..., Any], drafted: Assisted) -> None:
        self.usual = usual
        self.drafted: Assisted | None = drafted
        self.__doc__ = usual.__doc__
        self.__wrapped__ = usual

    def __call__(self, model: Any, *given: Any, **asked: Any) -> Any:
        """Generate, with drafts unless the call has a decoding loop of its own."""
        if self.drafted is None or asked.get("custom_generate") is not None:
            return self.usual(model, *given, **asked)
        if len(given) > 1:  # the configuration is the second argument of generate
            given, asked = (given[0], *given[2:]), {**asked, "generation_config": given[1]}
        return self.usual(model, *given, **{**with_stop_strings(model, asked), "custom_generate": self.drafted})


def with_stop_strings(model: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call with a criterion in the place of stop strings.

    ``generate`` does not pass its ``tokenizer`` on where it is given a decoding loop, and would ask for one.
    """
    config = asked.get("generation_config") or model.generation_config
    strings = asked.get("stop_strings") or config.stop_strings
    if not strings or asked.get("tokenizer") is None:
        return asked
    criteria = [*(asked.get("stopping_criteria") or ()), StopStringCriteria(asked["tokenizer"], strings)]
    left = {name: value for name, value in asked.items() if name not in ("tokenizer", "stop_strings")}
    if config.stop_strings:
        left["generation_config"] = config = copy.deepcopy(config)
        config.stop_strings = None
    return {**left, "stopping_criteria": StoppingCriteriaList(criteria)}


class Accelerated:
    """Handle of a model whose ``generate`` decodes with drafts, until it is removed.

    Args:
        owner: the module with the method ``generate``.
        drafted: what decodes with drafts.
    """

    def __init__(self, owner: Any, drafted: Any) -> None:
        self._owner, self._drafted, self._before = owner, drafted, vars(owner).get("generate")
        before = owner.generate
        own = isinstance(before, types.MethodType) and before.__self__ is owner
        usual = before.__func__ if own else lambda _, *given, **asked: before(*given, **asked)
        self._generate = Generate(usual, drafted)
        owner.generate = types.MethodType(self._generate, owner)

    @property
    def report(self) -> RunReport | None:
        """The figures of the latest call, or None if nothing was drafted in it."""
        return self._drafted.report

    def remove(self) -> None:
        """Give the model its own ``generate`` back, and release the models and caches that are kept."""
        self._generate.drafted = None  # copies of the model, and a later handle on top of this one, still have it
        if getattr(vars(self._owner).get("generate"), "__func__", None) is self._generate:
            if self._before is None:
                del self._owner.generate
            else:
                self._owner.generate = self._before
        self._drafted.close()

    def __enter__(self) -> Accelerated:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def accelerate(model: Any, drafter: Any, **options: Any) -> Accelerated:
    """Make ``model.generate`` decode with drafts, as ``specframe.accelerate`` does."""
    if not isinstance(model, torch.nn.Module) or not callable(getattr(model, "generate", None)):
        raise OptionError(f"model: expected a loaded model with a method generate, got {literal(model)}")
    drafted: Any = assisted(drafter, **options)
    use = drafted.composition
    if lossy := [f"the {role} {use.names[role]!r}" for role in use.lossy]:
        raise CompositionError(
            f"accelerate: expected strategies that keep the model's distribution, got {' and '.join(lossy)}; "
            "specframe.assisted takes them"
        )
    owner = getattr(model.generate, "__self__", model)
    return Accelerated(owner if isinstance(owner, torch.nn.Module) else model, drafted)
