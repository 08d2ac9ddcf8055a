"""Templates of ``specframe plugins new``: for each role a working strategy, to be replaced by the author's own."""

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
    """Members of the test class besides ``make``."""


DRAFTER = '''\
"""A drafter that expects every row to repeat itself."""

import torch

from specframe.contracts.drafts import Budget, Draft, Outcome
from specframe.contracts.round import Batch
from specframe.contracts.run import Run
from specframe.values import whole


class $title:
    """Proposes the last ``span`` tokens of each row, over and over.

    Options:
        span: how many tokens are repeated.
    """

    needs = frozenset()
    offers = frozenset({"chain"})
    """Its drafts are chains, and its tokens are certain: without "logits"."""

    def __init__(self, span: int = 4) -> None:
        self.span = whole("span", span, 1)

    def start(self, run: Run) -> None:
        """Nothing to prepare; a drafter with a model of its own opens its cache here."""

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return ``budget.depth`` tokens for every row of the batch."""
        last_BT = batch.last_tokens(self.span)
        places_K = torch.arange(budget.depth, device=last_BT.device) % self.span
        return Draft(last_BT[:, places_K])

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round: nothing here; a drafter that reads the target's features finds them in ``outcome.scores``."""
'''

VERIFIER = '''\
"""A verifier that scores a draft as one chain of tokens."""

import torch

from specframe.contracts.drafts import Block, Draft, Scores
from specframe.contracts.round import Batch
from specframe.contracts.run import Run


class $title:
    """Feeds each row's last token and its draft to the target in one pass."""

    needs = frozenset()
    offers = frozenset({"chain"})

    def start(self, run: Run) -> None:
        """Take the target, with its cache."""
        self._target = run.target

    def score(self, batch: Batch, draft: Draft) -> Scores:
        """Return the target's scores after the last token and after every draft token, logits (B, N + 1, V)."""
        if batch.prefill:
            return self._target.read(batch)
        ids_BT = torch.cat([batch.last_tokens(1), draft.tokens_BN], dim=1)
        return self._target.feed(batch, Block(ids_BT, start=-1), keep=draft.nodes + 1)
'''

RULE = '''\
"""An acceptance rule for greedy decoding."""

import torch

from specframe.contracts.drafts import Draft, Scores, Verdict
from specframe.contracts.round import Batch
from specframe.contracts.run import Run


class $title:
    """Accepts draft tokens while they are the target's most likely ones."""

    needs = frozenset()
    """The draft's logits are not looked at: "logits" is not needed."""
    offers = frozenset({"lossless", "draft-invariant"})
    """The output is the target's own, whatever was drafted."""

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return the token that a drafter should propose, (B,)."""
        return logits_BV.argmax(-1)

    def judge(self, batch: Batch, draft: Draft, scores: Scores) -> Verdict:
        """Return the longest prefix of the draft that the target agrees with, and the target's choice after it."""
        choices_BT = scores.logits_BTV.argmax(-1)
        agrees_BK = choices_BT[:, :-1] == draft.tokens_BN
        return Verdict(agrees_BK.long().cumprod(1).sum(1), choices_BT)
'''

ALIGNMENT = '''\
"""An alignment in which nothing is ever moved."""

import numpy as np
import torch

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Block, Draft, Verdict
from specframe.contracts.round import Batch
from specframe.contracts.run import Run


class $title:
    """Puts every token into the slot of its position; the next round writes over what was rejected."""

    needs = frozenset({"scatter"})
    """What the KV backend has to be able to do: write each row at places of its own."""
    offers = frozenset({"lossless"})
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

    static = True
    """Places follow from the rows' lengths alone."""

    def __init__(self, store: KVStore, capacity: int) -> None:
        self._store, self._spare = store, capacity

    def arrange(self, batch: Batch) -> None:
        """Make the batch's sequences the rows of what follows."""
        self._store.arrange(batch.sequences)

    def place(self, batch: Batch, block: Block) -> Placement:
        """Return places for a block of tokens of every row, from its length + ``block.start`` on."""
        device = batch.lengths_B.device
        order_BT = batch.lengths_B[:, None] + torch.arange(block.start, block.end, device=device)
        slots_BT = order_BT.where(order_BT >= 0, self._spare)
        key_order_1S = torch.arange(batch.longest + block.end, device=device)[None]
        return Placement(order_BT, slots_BT, order_BT, key_order_1S)

    def keep(self, batch: Batch, kept: np.ndarray, path_BT: torch.Tensor | None = None) -> None:
        """Nothing to do."""
'''

SCHEDULER = '''\
"""A scheduler whose batches start together and end together."""

from specframe.contracts.round import Batch
from specframe.contracts.pool import Pool


class $title:
    """Fills a batch, decodes it to the end, then fills the next."""

    needs = frozenset()
    offers = frozenset()

    def rows(self, batch_size: int) -> int:
        """Return how many sequences may be live at once."""
        self._batch_size = batch_size
        return batch_size

    def next_batch(self, pool: Pool) -> Batch | None:
        """Return the unfinished rows of the batch, or a new batch; None when all requests have finished."""
        sequences = pool.live or pool.admit(self._batch_size)
        return pool.batch(sequences) if sequences else None
'''

BACKEND = '''\
"""A KV backend that has a place for every slot of every row from the start."""

import torch

from specframe.contracts.cache import Dense, KVShape, Placement
from specframe.contracts.round import Sequence
from specframe.contracts.rows import Seating


class $title:
    """Keeps keys and values in two tensors per layer; new ones are written in place."""

    needs = frozenset()
    offers = frozenset({"scatter", "dense"})
    """What its stores can do: write each row at places of its own, and hand out plain tensors."""

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> "${title}Store":
        """Return a store for ``rows`` sequences of up to ``capacity`` slots, and one to spare, where padding goes."""
        return ${title}Store(shapes, rows, capacity + 1, device)


class ${title}Store:
    """The keys and values of one model, (rows, heads, slots, size) each."""

    def __init__(self, shapes: list[KVShape], rows: int, slots: int, device: torch.device) -> None:
        self.rows, self.slots, self.first = rows, None, 0
        self._seating = Seating(rows)
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

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Dense:
        """Write (B, H, T, D) keys and values; return those of all slots attended to, (B, H, S, D)."""
        held_keys, held_values = self._layers_held[layer]
        return Dense(self._write(held_keys, keys), self._write(held_values, values))

    def _write(self, held: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        rows = held[: len(states)]
        rows.scatter_(2, self._slots_BT[:, None, :, None].expand_as(states), states)
        return rows[:, :, : self._extent]

    def move(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        """Not asked for: "move" is not among what it offers."""
        raise NotImplementedError

    def reserve(self, sequence: Sequence, tokens: int) -> int:
        """Every row has room for the longest sequence; rows share nothing."""
        return 0

    def release(self, sequence: Sequence) -> None:
        """A finished sequence's row is free without being told."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(held.nbytes for pair in self._layers_held for held in pair)
'''

POLICY = '''\
"""A draft-length policy that goes up after a draft that stood, and down after one that did not."""

from specframe.contracts.drafts import Budget, RoundReport
from specframe.contracts.round import Batch
from specframe.values import whole


class $title:
    """Drafts one token more after a round in which most rows accepted everything, one fewer after any other.

    Options:
        maximum: the longest draft.
    """

    needs = frozenset()
    offers = frozenset()

    def __init__(self, maximum: int = 8) -> None:
        self.maximum = Budget(whole("maximum", maximum, 1))
        """Caches are made for it: nothing longer may be answered."""
        self._length = min(4, maximum)

    def budget(self, batch: Batch) -> Budget:
        """Return how much to draft this round, up to ``maximum``."""
        return Budget(self._length)

    def observe(self, report: RoundReport) -> None:
        """Learn from a finished round."""
        if report.draft.depth:
            stood = (report.accepted == report.draft.depth).mean() > 0.5
            self._length = min(self.maximum.depth, self._length + 1) if stood else max(1, self._length - 1)
'''

ATTENTION = '''\
"""An attention backend that shows scaled dot-product attention which slots are seen."""

import torch
import torch.nn.functional as F

from specframe.contracts.cache import Dense, Placement
from specframe.contracts.roles import AttentionFacts


class $title:
    """Attends under boolean masks, made once for each sliding window of a model's layers."""

    needs = frozenset()
    offers = frozenset({"dense", "tree", "window"})
    """It reads plain tensors, and keeps to ancestors in trees and to sliding windows."""

    def suits(self, facts: AttentionFacts) -> bool:
        """Return whether it can attend for a model: for any."""
        return True

    def plan(self, placement: Placement) -> "${title}Plan":
        """Return the attention of one forward."""
        return ${title}Plan(placement)


class ${title}Plan:
    """The attention of one forward, layer by layer."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._seen = {}

    def attend(self, query: torch.Tensor, view: Dense, scaling: float | None, window: int | None) -> torch.Tensor:
        """Return what (B, H, T, D) queries attend to, (B, T, H, D)."""
        if window not in self._seen:
            self._seen[window] = self._placement.seen(window)[:, None]
        shared = query.shape[1] != view.keys.shape[1]
        output = F.scaled_dot_product_attention(
            query, view.keys, view.values, self._seen[window], scale=scaling, enable_gqa=shared
        )
        return output.transpose(1, 2).contiguous()
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
    "attention": Template(
        "attention backend",
        "specframe_register_attention_backends",
        "--attention",
        "AttentionBackendSuite",
        "attends under boolean masks",
        ATTENTION,
    ),
}
"""The template of each role, by its word on the command line and the name of its module."""
