"""One suite per role. Subclass it, override ``make`` and run pytest:

    class TestMyDrafter(DrafterSuite):
        def make(self):
            return MyDrafter()          # or "my-drafter", "my-drafter,option=3"

``make`` returns a new strategy each time, or the name it is registered under. The other roles are played by fakes and
by the standard strategies. Every suite inherits :class:`DecodingSuite`: whatever the role, what is decoded with the
strategy equals the reference decoder's tokens, for ragged batches, in any order and batch size, wherever rows stop.
"""

from __future__ import annotations

from specframe_testing.conformance.acceptance_suite import AcceptanceRuleSuite
from specframe_testing.conformance.alignment import AlignmentSuite
from specframe_testing.conformance.attention_suite import AttentionBackendSuite
from specframe_testing.conformance.constraint import ConstraintSuite
from specframe_testing.conformance.decoding_suite import DecodingSuite
from specframe_testing.conformance.drafter_suite import DrafterSuite
from specframe_testing.conformance.executor_suite import ExecutorSuite
from specframe_testing.conformance.kv import KVBackendSuite
from specframe_testing.conformance.model_suite import ModelSuite
from specframe_testing.conformance.policy import DraftLengthPolicySuite
from specframe_testing.conformance.scheduler import SchedulerSuite
from specframe_testing.conformance.state_suites import StateKindSuite, StateStoreSuite
from specframe_testing.conformance.stops import StopSuite
from specframe_testing.conformance.tree_suite import TreeDrafterSuite
from specframe_testing.conformance.verifier import VerifierSuite

__all__ = [
    "AcceptanceRuleSuite",
    "AlignmentSuite",
    "AttentionBackendSuite",
    "ConstraintSuite",
    "DecodingSuite",
    "DraftLengthPolicySuite",
    "DrafterSuite",
    "ExecutorSuite",
    "KVBackendSuite",
    "ModelSuite",
    "SchedulerSuite",
    "StateKindSuite",
    "StateStoreSuite",
    "StopSuite",
    "TreeDrafterSuite",
    "VerifierSuite",
]
