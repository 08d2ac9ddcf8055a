"""The kinds of heads that can be trained."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterable, Mapping

from specframe.errors import OptionError
from specframe_heads.training.learner import Learner

LEARNERS: Mapping[str, str] = {
    "clover2": "specframe_heads.training.clover2:Clover2Learner",
    "dflash": "specframe_heads.training.dflash:DFlashLearner",
    "eagle3": "specframe_heads.training.eagle3:Eagle3Learner",
    "medusa": "specframe_heads.training.medusa_training:MedusaLearner",
}
"""Where the learner of each kind is."""


OPTIONS = {"ids": "--vocabulary", "layers": "--layers"}
"""Options that some kinds have, by the learner's name for them."""


def require(kind: str, options: Iterable[str]) -> None:
    """Raise :class:`OptionError` for an option that a kind's format has no place for."""
    for given in set(options) - inspect.signature(learner_class(kind)).parameters.keys():
        raise OptionError(f"{OPTIONS[given]}: expected a kind that has it, got {kind}")


def learner_class(kind: str) -> type[Learner]:
    """Return the class of a kind's learners."""
    found: type[Learner] = pkgutil.resolve_name(LEARNERS[kind])
    return found
