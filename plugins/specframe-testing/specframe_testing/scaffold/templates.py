"""Templates of ``specframe plugins new``: for each role a working strategy, to be replaced by the author's own."""

from __future__ import annotations

import attrs


@attrs.frozen
class Template:
    """A role's template: where it is registered, how it is chosen, and its suite. Its code is in the folder ``skeleton``."""

    role: str
    """The role, by the name errors use."""
    hook: str
    option: str
    """The option that chooses it."""
    suite: str
    does: str
    """The example's doing, to follow "it"."""
    example: str = ""
    """Options that the example takes, as on the command line."""
    promise: str = ""
    """Members of the test class besides ``make``."""


PATIENT = '''
    def max_wait(self, batch_size):
        """Everyone who is live is in every batch."""
        return 0
'''

TEMPLATES = {
    "drafter": Template(
        "drafter",
        "specframe_register_drafters",
        "--drafter",
        "DrafterSuite",
        "proposes the last tokens of each row over again",
        "span=8",
    ),
    "verifier": Template(
        "verifier",
        "specframe_register_verifiers",
        "--verify",
        "VerifierSuite",
        "feeds each row's last token and its draft to the target in one pass",
    ),
    "rule": Template(
        "acceptance rule",
        "specframe_register_acceptance_rules",
        "--accept",
        "AcceptanceRuleSuite",
        "accepts draft tokens while they are the target's most likely ones",
    ),
    "alignment": Template(
        "alignment",
        "specframe_register_alignments",
        "--align",
        "AlignmentSuite",
        "puts every token into the slot of its position and moves nothing",
    ),
    "scheduler": Template(
        "scheduler",
        "specframe_register_schedulers",
        "--schedule",
        "SchedulerSuite",
        "fills a batch, decodes it to the end, then fills the next",
        promise=PATIENT,
    ),
    "kv": Template(
        "KV backend",
        "specframe_register_kv_backends",
        "--kv",
        "KVBackendSuite",
        "keeps keys and values in two tensors per layer",
    ),
    "policy": Template(
        "draft-length policy",
        "specframe_register_draft_length_policies",
        "--draft-length",
        "DraftLengthPolicySuite",
        "drafts one token more after a draft that stood, and one fewer after any other",
        "maximum=4",
    ),
    "attention": Template(
        "attention backend",
        "specframe_register_attention_backends",
        "--attention",
        "AttentionBackendSuite",
        "attends under boolean masks",
    ),
}
"""The template of each role, by its word on the command line and the name of its module."""
