"""Fake models that show every fault of a cache, a tokenizer for them, and drafters that follow a script."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from specframe_std.trees.chains import GrowingChain
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import Split
from torch.nn.functional import one_hot
from transformers import (
    Cache,
    DynamicCache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.reports import Outcome, RoundReport
from specframe.contracts.round import Batch, Kept
from specframe.devices.kinds import on_device
from specframe.model.run import Run

CERTAIN = 100.0
"""Logit of a fake's choice above all others: its distribution is a point mass, and every lossless rule is greedy."""


class FakeConfig(PreTrainedConfig):
    """Configuration of :class:`FakeModel`."""

    model_type = "specframe-fake"

    def __init__(
        self,
        vocab_size: int = 61,
        max_position_embeddings: int = 256,
        seed: int = 0,
        slip_every: int = 0,
        eos_token_id: int = 0,
        **options: Any,
    ) -> None:
        self.vocab_size, self.max_position_embeddings = vocab_size, max_position_embeddings
        self.seed, self.slip_every = seed, slip_every
        self.num_hidden_layers = 1
        self.eos_token_id = self.pad_token_id = eos_token_id
        super().__init__(**options)


class FakeModel(PreTrainedModel, GenerationMixin):
    """A language model without weights, whose next token is a hash of every (token, position) pair it attends to.

    The pairs are read through the KV cache, from keys and values alike, and summed in whole numbers. One key too many, too few or
    twice, a wrong position, a stale slot or a key with another's value changes the output; the order of slots, rows and padding
    does not. Two fakes of one seed choose the same, but for one context in ``slip_every`` in which the one that slips answers
    something else.
    """

    config_class = FakeConfig
    _supports_sdpa = True
    attending = 0
    """The number of the layer with keys and values."""

    def __init__(self, config: FakeConfig) -> None:
        super().__init__(config)
        self.anchor = torch.nn.Parameter(torch.zeros(1))
        self.register_buffer("shifts_V", torch.arange(config.vocab_size) % 31, persistent=False)
        self._size, self._seed, self._slip_every = config.vocab_size, config.seed, config.slip_every
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """There are no weights."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits (B, T, V), or those of the last ``logits_to_keep`` tokens."""
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        do: Any = torch.ops.specframe_testing if input_ids.device.type == "sim" else DIRECTLY
        keys, values = do.noted(input_ids, position_ids, self.anchor.dtype)
        if past_key_values is None and use_cache:
            past_key_values = DynamicCache()
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, self.attending)
        mask = attention_mask["full_attention"] if isinstance(attention_mask, dict) else attention_mask
        added_BT = position_ids + self.remembered(input_ids, past_key_values)
        traits = (self._size, self._seed, self._slip_every)
        given = (keys, values, mask, added_BT, self.shifts_V, *traits, logits_to_keep, self.anchor.dtype)
        logits_BTV = do.recalled(*given)
        return CausalLMOutputWithPast(logits=logits_BTV, past_key_values=past_key_values)

    def remembered(self, ids_BT: torch.Tensor, cache: Cache | None) -> torch.Tensor | int:
        """Return what layers without keys and values add to each token's sum."""
        return 0


def noted(ids_BT: torch.Tensor, positions_BT: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys (B, 1, T, 2) and values (B, 1, T, 1) of tokens."""
    keys = torch.stack([ids_BT, positions_BT], dim=-1)[:, None] + 1
    values = torch.add(positions_BT, ids_BT, alpha=3)[:, None, :, None] + 1
    return keys.to(dtype), values.to(dtype)


def recalled(
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    added_BT: torch.Tensor,
    shifts_V: torch.Tensor,
    size: int,
    seed: int,
    slip_every: int,
    keep: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the logits (B, T, V) of the last ``keep`` tokens, of 0 all, each a hash of the pairs that its token sees."""
    token_BS, position_BS = keys[:, 0].long().unbind(-1)
    pairs_BS = torch.add(token_BS * 8191 + seed, position_BS, alpha=131)
    pairs_BS = torch.add(pairs_BS, values[:, 0, :, 0].long(), alpha=524287)
    visible_BTS = _visible(mask, added_BT.shape[1], keys.shape[2], keys.device)
    sums_BT = (visible_BTS * mixed(pairs_BS)[:, None]).sum(-1) + added_BT
    hash_BT = mixed(sums_BT[:, -keep:])
    choice_BT = hash_BT % size
    if slip_every:
        slips = mixed(hash_BT + 1) % slip_every == 0
        choice_BT = (choice_BT + slips) % size
    others_BTV = (hash_BT[..., None] >> shifts_V) & 1
    return others_BTV.to(dtype).scatter_(2, choice_BT[..., None], CERTAIN)


LIBRARY = torch.library.Library("specframe_testing", "DEF")
"""What a fake computes as operators: the simulated device does each as one, for there every operator takes long."""
LIBRARY.define("noted(Tensor ids, Tensor positions, ScalarType dtype) -> (Tensor, Tensor)")
LIBRARY.define(
    "recalled(Tensor keys, Tensor values, Tensor? mask, Tensor added, Tensor shifts, "
    "int size, int seed, int slip_every, int keep, ScalarType dtype) -> Tensor"
)
LIBRARY.impl("noted", noted, "CompositeExplicitAutograd")
LIBRARY.impl("recalled", recalled, "CompositeExplicitAutograd")
DIRECTLY = SimpleNamespace(noted=noted, recalled=recalled)


def _visible(mask: torch.Tensor | None, queries: int, keys: int, device: torch.device) -> torch.Tensor:
    """Return which keys each query sees, (B or 1, T, S), from a boolean or additive mask or, without one, causally."""
    if mask is None:
        return torch.ones(1, queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0


def mixed(numbers: torch.Tensor) -> torch.Tensor:
    """Scatter whole numbers over 31 bits."""
    numbers = numbers * 0x9E3779B1
    numbers ^= numbers >> 29
    numbers *= 0x2C1B3C6D
    numbers ^= numbers >> 32
    return numbers.bitwise_and_(0x7FFFFFFF)


def fake_target(vocabulary: int = 61, seed: int = 0, context: int = 256, eos: int = 0) -> FakeModel:
    """Return a fake target; its pad id is its eos id."""
    return FakeModel(FakeConfig(vocabulary, context, seed, eos_token_id=eos)).eval()


def fake_draft(target: FakeModel, slip_every: int = 3) -> FakeModel:
    """Return a fake draft of the target's kind that chooses as it does but for one context in ``slip_every``, with 1 never."""
    config: Any = copy.deepcopy(target.config)
    config.slip_every = slip_every
    return type(target)(config).eval()


def fake_tokenizer(vocabulary: int = 61, eos: int = 0) -> PreTrainedTokenizerBase:
    """Return a tokenizer in whose text token 7 is ``007;``, with nothing in between; the eos token is special."""
    words = {word(token): token for token in range(vocabulary) if token != eos} | {"<eos>": eos}
    tokens = Tokenizer(WordLevel(words, unk_token="<eos>"))
    tokens.pre_tokenizer = Split(";", "merged_with_previous")
    tokens.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<eos>")


def spelled_tokenizer(width: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer without merges, whose 61 tokens have ``width`` characters each."""
    tokens = Tokenizer(BPE(vocab={chr(0x4E00 + token) * width: token for token in range(61)}, merges=[]))
    tokens.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokens)


def word(token: int) -> str:
    """Return the text of a token of :func:`fake_tokenizer`."""
    return f"{token:03};"


Right = int | Mapping[int, int] | Callable[[int, int], int] | None
"""Number of right draft tokens: one number, a number per request index, ``f(index, tokens generated)``, or None for all."""


class ScriptedDrafter:
    """Drafter that follows a script: a number of right tokens, then wrong tokens.

    Args:
        truth: the target's own continuation of each request, by request index; longer than what will be generated.
        right: how many tokens of each draft are right, see :data:`Right`.
    """

    def __init__(self, truth: Sequence[Sequence[int]], right: Right = None) -> None:
        self.truth, self.right = truth, right

    needs: frozenset[str] = frozenset()
    offers = frozenset({"chain", "logits", "stops"})

    def start(self, run: Run) -> None:
        """Learn the vocabulary; forget the run before."""
        self._vocabulary = run.runner.vocabulary
        self.proposed: list[int] = []

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn: the script is fixed."""

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return the script's tokens, as a drafter that is certain of them."""
        draft_length = budget.depth
        if not batch.prefill:
            self.proposed.append(draft_length)
        rows = [self._row(batch, row, draft_length) for row in range(len(batch))]
        tokens_BK = on_device(rows, batch.tokens_BS.device).reshape(len(batch), draft_length)
        logits_BKV = CERTAIN * one_hot(tokens_BK, self._vocabulary).float()
        chain = GrowingChain(batch, budget)
        if not chain.may_end:
            return Draft(tokens_BK, logits_BKV)
        for place in range(draft_length):
            if not chain.goes_on(logits_BKV[:, place, None]):
                break
            chain.add(tokens_BK[:, place, None], logits_BKV[:, place, None])
        return chain.draft

    def _row(self, batch: Batch, row: int, draft_length: int) -> list[int]:
        request = batch.sequences[row].request
        generated = int(batch.lengths[row]) - len(request.prompt_ids)
        right = self._right(request.index, generated, draft_length)
        truth = [*self.truth[request.index][generated : generated + draft_length]]
        truth += [0] * (draft_length - len(truth))
        return [token if place < right else (token + 1) % self._vocabulary for place, token in enumerate(truth)]

    def _right(self, index: int, generated: int, draft_length: int) -> int:
        if self.right is None:
            return draft_length
        if isinstance(self.right, int):
            return self.right
        return self.right[index] if isinstance(self.right, Mapping) else self.right(index, generated)


class Sharing:
    """Drafts with the target itself on the target's own cache: every draft is right."""

    needs = frozenset({"share"})
    offers = frozenset({"chain"})

    def start(self, run: Run) -> None:
        """Open the target once more on its cache."""
        self._rule = run.rule
        self._cache = run.open_cache(cast(PreTrainedModel, run.runner.module), share=run.target)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return the target's tokens, and forget that they were fed."""
        if budget.depth == 0:
            return Draft(batch.tokens_BS[:, :0])

        def choose(batch: Batch, offset: int, logits_B1V: torch.Tensor) -> torch.Tensor:
            return self._rule.choose(batch, offset, logits_B1V[:, 0])[:, None]

        tokens_BK = self._cache.extend(batch, batch.last_tokens(1), budget.depth, choose)
        self._cache.commit(batch, Kept(-1))
        return Draft(tokens_BK)


class Uneven:
    """Draft-length policy that gives each row a budget of its own, by turns: none to any, to one row, to every other, unlike ones.

    Args:
        maximum: the most that a row gets.
    """

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()

    def __init__(self, maximum: Budget) -> None:
        self.maximum = maximum
        self.said: list[Budget] = []

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def budget(self, batch: Batch) -> Budget:
        """Return and note the budget of the next turn."""
        turn, rows_B, most = len(self.said), np.arange(len(batch)), self.maximum
        shares = (
            None,
            (rows_B == turn % len(rows_B)) * most.nodes,
            (rows_B + turn) % (most.nodes + 1),
            rows_B * 0,
            (rows_B % 2) * most.nodes,
            rows_B * 0 + most.nodes,
        )
        nodes_B = shares[turn % len(shares)]
        depths_B = None if nodes_B is None else np.minimum(nodes_B, (3 * rows_B + turn) % most.depth + 1)
        chain = most.nodes == most.depth
        self.said.append(Budget(most.depth, most.nodes, depths_B, None if chain else nodes_B))
        return self.said[-1]

    def observe(self, report: RoundReport) -> None:
        """Nothing to learn."""


TREE = (-1, -1, 0, 1, 1, 3)
"""The parents of the tree of :class:`ScriptedTree`: nodes 1, 3 and 5 are the script's path, the others branch off."""
TREE_NODES = {1: 2, 2: 5, 3: 6}
"""The nodes of the tree cut to a depth."""
TREE_PATH = {1: 0, 3: 1, 5: 2}
"""The place after the row's end of each node of the script's path."""


class ScriptedTree(ScriptedDrafter):
    """Proposes the script's tokens, three at most, with a wrong branch at every node."""

    needs = frozenset({"tree", "move"})
    offers = frozenset({"tree", "logits", "budget"})

    def budget(self, depth: int | None = None) -> Budget:
        """Return the budget of the tree down to a depth."""
        depth = min(3, depth or 3)
        return Budget(depth, TREE_NODES[depth])

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return the tree of six nodes; an empty draft where nothing is asked for."""
        if budget.depth == 0:
            return Draft(batch.tokens_BS[:, :0])
        depth = min(budget.depth, max(deep for deep in TREE_NODES if TREE_NODES[deep] <= budget.nodes))
        chain_BK = super().propose(batch, Budget(3)).tokens_BN
        wrong_B1 = (chain_BK[:, :1] + 7) % self._vocabulary
        nodes = range(TREE_NODES[depth])
        tokens = [chain_BK[:, TREE_PATH[node]][:, None] if node in TREE_PATH else wrong_B1 for node in nodes]
        tokens_BN = torch.cat(tokens, dim=1)
        parents_BN = torch.tensor(TREE[: len(nodes)], device=tokens_BN.device).repeat(len(batch), 1)
        logits_BNV = CERTAIN * one_hot(tokens_BN, self._vocabulary).float()
        return Draft(tokens_BN, logits_BNV, parents_BN, depth=depth)


def always_right(truth: Sequence[Sequence[int]]) -> ScriptedDrafter:
    """Return a drafter whose every token is the target's."""
    return ScriptedDrafter(truth)


def right_for(count: int, truth: Sequence[Sequence[int]]) -> ScriptedDrafter:
    """Return a drafter whose first ``count`` tokens of every draft are the target's."""
    return ScriptedDrafter(truth, count)


def always_wrong(truth: Sequence[Sequence[int]]) -> ScriptedDrafter:
    """Return a drafter none of whose tokens is the target's."""
    return ScriptedDrafter(truth, 0)
