"""Templates of ``specframe plugins new``: for each role a working strategy, to be replaced by the author's own."""

from __future__ import annotations

import re

import attrs

from specframe.plugins.compose import OPTIONS
from specframe.plugins.entries import ROLES


@attrs.frozen
class Template:
    """A role's template: what the example says of itself. Its code is in the folder ``skeleton``."""

    role: str
    """The role, by the name errors use."""
    does: str
    """The example's doing, to follow "it"."""
    example: str = ""
    """Options that the example takes, as on the command line."""
    promise: str = ""
    """Members of the test class apart from ``make``."""

    @property
    def hook(self) -> str:
        """The hook that it is registered through."""
        return ROLES[self.role]

    @property
    def option(self) -> str:
        """The option that chooses it."""
        return "--" + OPTIONS[self.role].replace("_", "-")

    @property
    def suite(self) -> str:
        """The role's conformance suite: its class bears the role's name."""
        return "".join(word[0].upper() + word[1:] for word in re.split(r"[ -]", self.role)) + "Suite"


PATIENT = '''
    def max_wait(self, batch_size):
        """Everyone who is live is in every batch."""
        return 0
'''

TEMPLATES = {
    "drafter": Template(
        "drafter",
        "proposes the last tokens of each row over again",
        example="span=8",
    ),
    "verifier": Template(
        "verifier",
        "feeds each row's last token and its draft to the target in one pass",
    ),
    "rule": Template(
        "acceptance rule",
        "accepts draft tokens while they are the target's most likely ones",
    ),
    "alignment": Template(
        "alignment",
        "puts every token into the slot of its position and moves nothing",
    ),
    "scheduler": Template(
        "scheduler",
        "fills a batch, decodes it to the end, then fills the next",
        promise=PATIENT,
    ),
    "kv": Template(
        "KV backend",
        "keeps keys and values in two tensors per layer",
    ),
    "policy": Template(
        "draft-length policy",
        "drafts one token more after a draft that was accepted, and one fewer after any other",
        example="maximum=4",
    ),
    "attention": Template(
        "attention backend",
        "attends under boolean masks",
    ),
}
"""The template of each role, by its word on the command line and the name of its module."""
