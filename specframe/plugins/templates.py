"""What ``specframe plugins new`` writes for each role: a strategy that works, to be replaced by one's own."""

from __future__ import annotations

import attrs


@attrs.frozen
class Template:
    """A role's template: where it is registered, how it is chosen, and its code, with ``$name`` and ``$title`` to be filled in."""

    role: str
    """The role, by the name errors use."""
    hook: str
    option: str
    """The option that chooses it."""
    suite: str
    does: str
    """The example's doing, to follow "it"."""
    code: str
    example: str = ""
    """Options that the example takes, as on the command line."""
    promise: str = ""
    """What its test class promises beyond ``make``."""


DRAFTER = '''\
"""A drafter that expects every row to repeat itself."""

import torch

from specframe.forward.run import Run
from specframe.contracts.round import Batch
from specframe.contracts.drafts import Draft
from specframe.values import whole


class $title:
    """Proposes the last ``span`` tokens of each row, over and over.

    Options:
        span: how many tokens are repeated.
    """

    def __init__(self, span: int = 4) -> None:
        self.span = whole("span", span, 1)

    def start(self, run: Run) -> None:
        """Nothing to prepare; a drafter with a model of its own opens its cache here."""

    def propose(self, batch: Batch, draft_length: int) -> Draft:
        """Return ``draft_length`` tokens for every row of the batch."""
        last_BT = batch.last_tokens(self.span)
        places_K = torch.arange(draft_length, device=last_BT.device) % self.span
        return Draft(last_BT[:, places_K])
'''

VERIFIER = '''\
"""A verifier that scores a draft as one chain of tokens."""

import torch

from specframe.forward.run import Run
from specframe.contracts.round import Batch
from specframe.contracts.drafts import Draft


class $title:
    """Feeds each row's last token and its draft to the target in one pass."""

    def start(self, run: Run) -> None:
        """Take the target, with its cache."""
        self._target = run.target

    def score(self, batch: Batch, draft: Draft) -> torch.Tensor:
        """Return the target's logits after the last token and after every draft token, (B, K + 1, V)."""
        if batch.prefill:
            return self._target.read(batch)
        ids_BT = torch.cat([batch.last_tokens(1), draft.tokens_BK], dim=1)
        return self._target.feed(batch, ids_BT, offset=draft.length, keep=draft.length + 1)
'''

RULE = '''\
"""An acceptance rule for greedy decoding."""

import torch

from specframe.forward.run import Run
from specframe.contracts.round import Batch
from specframe.contracts.drafts import Draft, Verdict


class $title:
    """Accepts draft tokens while they are the target's most likely ones."""

    lossless = True
    """The output is the target's own."""
    sharpen = False
    """Rows that are decoded greedily need no treatment: all are."""
    invariant = True
    """What comes out is the same whatever was drafted."""
    compares = False
    """The draft's logits are not looked at."""

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return the token that a drafter should propose, (B,)."""
        return logits_BV.argmax(-1)

    def judge(self, batch: Batch, draft: Draft, logits_BTV: torch.Tensor) -> Verdict:
        """Return the longest prefix of the draft that the target agrees with, and the target's choice after it."""
        choices_BT = logits_BTV.argmax(-1)
        agrees_BK = choices_BT[:, :-1] == draft.tokens_BK
        return Verdict(agrees_BK.long().cumprod(1).sum(1), choices_BT)
'''

ALIGNMENT = '''\
"""An alignment in which nothing is ever moved."""

import numpy as np
import torch

from specframe.contracts.cache import KVStore
from specframe.forward.run import Run
from specframe.contracts.round import Batch
from specframe.contracts.drafts import Draft, Verdict
from specframe.contracts.cache import Placement


class $title:
    """Puts every token into the slot of its position; the next round writes over what was rejected."""

    lossless = True
    requires = frozenset({"scatter"})
    """What the KV backend has to be able to do: write each row at places of its own."""
    scheduler = "continuous"
    kv = "slab"
    """The scheduler and the KV backend that are used unless others are asked for."""

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def layout(self, store: KVStore, rows: int, capacity: int) -> "${title}Layout":
        """Return the layout of one model's cache."""
        return ${title}Layout(store, capacity)

    def commit(self, batch: Batch, draft: Draft, verdict: Verdict) -> Verdict:
        """Return the verdict that stands: what was rejected lies beyond the row's end, where no query looks."""
        return verdict


class ${title}Layout:
    """Slot = position. Padding goes to the slot after the last, which no query reaches."""

    def __init__(self, store: KVStore, capacity: int) -> None:
        self._store, self._spare = store, capacity

    def arrange(self, batch: Batch) -> None:
        """Make the batch's sequences the rows of what follows."""
        self._store.arrange(batch.sequences)

    def place(self, batch: Batch, width: int, offset: int) -> Placement:
        """Return places for the ``width`` tokens of every row that end at its length + ``offset``."""
        device = batch.lengths_B.device
        order_BT = batch.lengths_B[:, None] + torch.arange(offset - width, offset, device=device)
        slots_BT = order_BT.where(order_BT >= 0, self._spare)
        key_order_1S = torch.arange(batch.longest + offset, device=device)[None]
        return Placement(order_BT, slots_BT, order_BT, key_order_1S)

    def keep(self, batch: Batch, kept: np.ndarray) -> None:
        """Nothing to do."""
'''

SCHEDULER = '''\
"""A scheduler whose batches start together and end together."""

from specframe.engine.pool import Pool
from specframe.contracts.round import Batch


class $title:
    """Fills a batch, decodes it to the end, then fills the next."""

    equal_lengths = False
    """Whether it groups rows of equal length."""

    def rows(self, batch_size: int) -> int:
        """Return how many sequences may be live at once."""
        self._batch_size = batch_size
        return batch_size

    def next_batch(self, pool: Pool) -> Batch | None:
        """Return what is left of the batch, or a new one; None when everything has finished."""
        sequences = pool.live or pool.admit(self._batch_size)
        return pool.batch(sequences) if sequences else None
'''

BACKEND = '''\
"""A KV backend that has a place for every slot of every row from the start."""

from typing import Any

import numpy as np
import torch
from transformers import Cache

from specframe.engine.rows import Seating
from specframe.contracts.cache import KVShape, Placement
from specframe.contracts.round import Sequence


class $title:
    """Keeps keys and values in two tensors per layer; new ones are written in place."""

    provides = frozenset({"scatter"})
    """What its stores can do: write each row at places of its own."""

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> "${title}Store":
        """Return a store for ``rows`` sequences of up to ``capacity`` slots, and one to spare, where padding goes."""
        return ${title}Store(shapes, rows, capacity + 1, device)


class ${title}Store(Cache):
    """The keys and values of one model, (rows, heads, slots, size) each."""

    def __init__(self, shapes: list[KVShape], rows: int, slots: int, device: torch.device) -> None:
        super().__init__(layers=[])
        self._seating, self._extent = Seating(rows), 0
        self._layers_held = [
            [torch.zeros(rows, shape.heads, slots, size, dtype=shape.dtype, device=device) for size in sizes]
            for shape in shapes
            for sizes in [(shape.key_size, shape.value_size)]
        ]

    def arrange(self, sequences: list[Sequence]) -> None:
        """Make ``sequences`` the first rows, in this order."""
        self._seating.arrange(sequences).apply(*(held for pair in self._layers_held for held in pair))

    def expect(self, placement: Placement) -> None:
        """Take the slots that the next forward writes, and how many it attends to."""
        self._slots_BT, self._extent = placement.slots_BT, placement.key_order_BS.shape[1]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (B, H, T, D) keys and values; return those of all slots attended to, (B, H, S, D)."""
        keys, values = self._layers_held[layer_idx]
        return self._write(keys, key_states), self._write(values, value_states)

    def _write(self, held: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        rows = held[: len(states)]
        rows.scatter_(2, self._slots_BT[:, None, :, None].expand_as(states), states)
        return rows[:, :, : self._extent]

    def shift(self, offsets: np.ndarray, width: int) -> None:
        """Not asked for: "shift" is not among what it provides."""
        raise NotImplementedError

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the extent of the last forward; positions never come from it."""
        return self._extent

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(held.nbytes for pair in self._layers_held for held in pair)
'''

POLICY = '''\
"""A draft-length policy that goes up after a draft that stood, and down after one that did not."""

from specframe.contracts.round import Batch
from specframe.contracts.drafts import RoundReport
from specframe.values import whole


class $title:
    """Drafts one token more after a round in which most rows accepted everything, one fewer after any other.

    Options:
        maximum: the longest draft.
    """

    def __init__(self, maximum: int = 8) -> None:
        self.maximum = whole("maximum", maximum, 1)
        """Caches are made for it: nothing longer may be answered."""
        self._length = min(4, self.maximum)

    def draft_length(self, batch: Batch) -> int:
        """Return the number of tokens to draft this round, 0 to ``maximum``."""
        return self._length

    def observe(self, report: RoundReport) -> None:
        """Learn from a finished round."""
        if report.draft.length:
            stood = (report.accepted == report.draft.length).mean() > 0.5
            self._length = min(self.maximum, self._length + 1) if stood else max(1, self._length - 1)
'''

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
        DRAFTER,
        "span=8",
    ),
    "verifier": Template(
        "verifier",
        "specframe_register_verifiers",
        "--verify",
        "VerifierSuite",
        "feeds each row's last token and its draft to the target in one pass",
        VERIFIER,
    ),
    "rule": Template(
        "acceptance rule",
        "specframe_register_acceptance_rules",
        "--accept",
        "AcceptanceRuleSuite",
        "accepts draft tokens while they are the target's most likely ones",
        RULE,
    ),
    "alignment": Template(
        "alignment",
        "specframe_register_alignments",
        "--align",
        "AlignmentSuite",
        "puts every token into the slot of its position and moves nothing",
        ALIGNMENT,
    ),
    "scheduler": Template(
        "scheduler",
        "specframe_register_schedulers",
        "--schedule",
        "SchedulerSuite",
        "fills a batch, decodes it to the end, then fills the next",
        SCHEDULER,
        promise=PATIENT,
    ),
    "kv": Template(
        "KV backend",
        "specframe_register_kv_backends",
        "--kv",
        "KVBackendSuite",
        "keeps keys and values in two tensors per layer",
        BACKEND,
    ),
    "policy": Template(
        "draft-length policy",
        "specframe_register_draft_length_policies",
        "--draft-length",
        "DraftLengthPolicySuite",
        "drafts one token more after a draft that stood, and one fewer after any other",
        POLICY,
        "maximum=4",
    ),
}
"""The template of each role, by its word on the command line and the name of its module."""
