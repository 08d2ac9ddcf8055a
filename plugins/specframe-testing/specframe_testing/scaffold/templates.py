"""Templates of ``specframe plugins new``: for each role a working strategy, to be replaced by the author's own."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
    summary: str
    """The first line of the example's docstring."""
    traits: Mapping[str, str] = attrs.field(factory=dict)
    """What is declared beside its summary, as Python text, by the names that ``register`` takes."""
    example: str = ""
    """Options that the example takes, as on the command line."""
    promise: str = ""
    """Members of the test class besides ``make``."""

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
        "Proposes the last ``span`` tokens of each row, over and over.",
        {"offers": '{"chain"}'},
        example="span=8",
    ),
    "verifier": Template(
        "verifier",
        "feeds each row's last token and its draft to the target in one pass",
        "Feeds each row's last token and its draft to the target in one pass.",
        {"offers": '{"chain"}'},
    ),
    "rule": Template(
        "acceptance rule",
        "accepts draft tokens while they are the target's most likely ones",
        "Accepts draft tokens while they are the target's most likely ones.",
        {"offers": '{"lossless", "draft-invariant"}'},
    ),
    "alignment": Template(
        "alignment",
        "puts every token into the slot of its position and moves nothing",
        "Puts every token into the slot of its position; the next round writes over what was rejected.",
        {"needs": '{"scatter"}', "offers": '{"lossless", "uneven"}', "scheduler": '"$scheduler"', "kv": '"$kv"'},
    ),
    "scheduler": Template(
        "scheduler",
        "fills a batch, decodes it to the end, then fills the next",
        "Fills a batch, decodes it to the end, then fills the next.",
        promise=PATIENT,
    ),
    "kv": Template(
        "KV backend",
        "keeps keys and values in two tensors per layer",
        "Keeps keys and values in two tensors per layer; new ones are written in place.",
        {"offers": '{"scatter", "dense"}'},
    ),
    "policy": Template(
        "draft-length policy",
        "drafts one token more after a draft that stood, and one fewer after any other",
        "Drafts one token more after a round in which most rows accepted everything, one fewer after any other.",
        example="maximum=4",
    ),
    "attention": Template(
        "attention backend",
        "attends under boolean masks",
        "Attends under boolean masks, made once for each sliding window of a model's layers.",
        {"offers": '{"dense", "tree", "window"}'},
    ),
}
"""The template of each role, by its word on the command line and the name of its module."""
