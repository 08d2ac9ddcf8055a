"""Models: they depend on the positions, slots and masks that they receive, and keep their keys and values in the given slots.

Tensor names carry their shape: B rows, T tokens fed per row, S slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Block
from specframe.contracts.model import PLAIN, ForwardOptions, Model
from specframe.contracts.requests import Request
from specframe.contracts.round import Sequence as LiveSequence
from specframe.errors import ModelError
from specframe.plugins.protocols import require_members
from specframe.plugins.registry import registry
from specframe_testing import fakes, harness, standard
from specframe_testing.conformance.alignment import BY_ROW
from specframe_testing.conformance.decoding_suite import LENGTHS, RIGHT
from specframe_testing.strict import strict

TOKENS = [7, 3, 11, 3, 5, 2]
"""What is fed: a token comes twice, so that its place matters."""

BEYOND = 8
"""Tokens of a script beyond the end of a request."""

_truth: dict[type, list[list[int]]] = {}
"""The continuations of the prompts of each suite."""


class ModelSuite:
    """Tests of a model: an object with the members of :class:`specframe.contracts.model.Model`."""

    tolerance = 1e-4
    """The largest difference of logits that should be equal."""

    def model(self) -> Model:
        """Return the model, of at least 16 token ids, with the same weights every time."""
        raise NotImplementedError(f"{type(self).__name__}: model() must return a model")

    def store(self, rows: int, slots: int) -> KVStore:
        """Return a store for some rows, of which nothing but the protocol can be seen."""
        model = self.model()
        store = registry().make("KV backend", standard.STORE).open(model.kv_shapes, rows, slots, model.device)
        store.arrange([LiveSequence(Request(row, [1], 1), 2) for row in range(rows)])
        made: KVStore = strict(store, KVStore)
        return made

    def fed(
        self,
        store: KVStore,
        ids: list[int],
        slots: list[int],
        orders: list[int] | None = None,
        keys: list[int] | None = None,
        **tree: Any,
    ) -> torch.Tensor:
        """Return the logits (T, V) after tokens of one row; the slots hold tokens of these indices, -1 for none."""
        device, width = self.model().device, len(ids)
        index_BT = torch.tensor([slots if orders is None else orders], device=device)
        key_index_BS = torch.tensor([[*range(max(slots) + 1)] if keys is None else keys], device=device)
        slots_BT, ids_BT = torch.tensor([slots], device=device), torch.tensor([ids], device=device)
        block = Block(ids_BT, parents_BT=None if not tree else torch.tensor([tree["parents"]], device=device))
        placement = Placement(index_BT.clamp(min=0), slots_BT, index_BT, key_index_BS, sees_BTT=block.sees_BTT)
        return self.model().forward(block, placement, store, keep=width).logits_BTV[0]

    def equal(self, found: torch.Tensor, wanted: torch.Tensor) -> None:
        """Assert that logits are equal."""
        torch.testing.assert_close(found, wanted, atol=self.tolerance, rtol=self.tolerance)

    def continuation(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return the most likely tokens after a prompt, which are fed one by one after it, each in a slot of its own."""
        ids, store = list(prompt), self.store(1, len(prompt) + count)
        logits_TV = self.fed(store, ids, [*range(len(ids))])
        for _ in range(count):
            ids.append(int(logits_TV[-1].argmax()))
            logits_TV = self.fed(store, ids[-1:], [len(ids) - 1])
        return ids[len(prompt) :]

    def test_has_the_members_of_a_model(self) -> None:
        """Nothing that the protocol declares is missing, and it has layers that attend."""
        model = self.model()
        require_members("model", model)
        assert model.kv_shapes
        assert model.vocabulary >= max(TOKENS)
        model.require_decodable(Request(0, [1], 2))
        assert model.by_rows is None
        assert model.tokens_at_once(64, PLAIN) > 0

    def test_at_once_and_one_by_one(self) -> None:
        """Tokens fed at once have the logits that they have one after the other."""
        store = self.store(1, 8)
        steps = [self.fed(store, [token], [place]) for place, token in enumerate(TOKENS)]
        self.equal(torch.cat(steps), self.fed(self.store(1, 8), TOKENS, [*range(len(TOKENS))]))

    def test_slots_mean_nothing(self) -> None:
        """Tokens in other slots have the same logits: their positions and indices are their places."""
        slots = [4, 0, 5, 1, 3, 2]
        keys = [slots.index(slot) for slot in range(len(slots))]
        found = self.fed(self.store(1, 8), TOKENS, slots, [*range(len(slots))], keys)
        self.equal(found, self.fed(self.store(1, 8), TOKENS, [*range(len(TOKENS))]))

    def test_positions_mean_something(self) -> None:
        """The last of the same tokens in another order has other logits."""
        places = [*range(len(TOKENS))]
        one, other = (self.fed(self.store(1, 8), ids, places)[-1] for ids in (TOKENS, [*TOKENS[-2::-1], TOKENS[-1]]))
        assert (one - other).abs().max() > self.tolerance

    def test_padding_leaves_no_trace(self) -> None:
        """What precedes a row's first token, and what a slot holds that is no token, is seen by nobody."""
        store, count = self.store(1, 12), len(TOKENS)
        self.fed(store, [9] * 10, [*range(10)])
        orders = [-2, -1, *range(count)]
        found = self.fed(store, [9, 9, *TOKENS], [*range(count + 2)], orders, [*orders, -1, -1])[2:]
        self.equal(found, self.fed(self.store(1, 8), TOKENS, [*range(count)]))

    def test_a_trees_nodes_see_their_ancestors(self) -> None:
        """Each node of a tree has the logits that it has at the end of its own path."""
        parents, nodes = [-1, 0, 0, 1], [4, 8, 6, 1]
        start = len(TOKENS)
        depths = [0, 1, 1, 2]
        store = self.store(1, 16)
        self.fed(store, TOKENS, [*range(start)])
        slots, keys = [start + node for node in range(4)], [*range(start), *(start + depth for depth in depths)]
        found = self.fed(store, nodes, slots, [start + depth for depth in depths], keys, parents=parents)
        for node, path in enumerate(([0], [0, 1], [0, 2], [0, 1, 3])):
            ids = TOKENS + [nodes[one] for one in path]
            self.equal(found[node], self.fed(self.store(1, 16), ids, [*range(len(ids))])[-1])

    def test_hidden_states(self) -> None:
        """Hidden states that the model takes are returned for all tokens; those that it has not are refused."""
        model, ids_BT = self.model(), torch.tensor([TOKENS], device=self.model().device)
        index_BT = torch.arange(len(TOKENS), device=model.device)[None]
        try:
            model.require(PLAIN, [0])
        except ModelError:
            return
        placement = Placement(index_BT, index_BT, index_BT, index_BT)
        scores = model.forward(Block(ids_BT), placement, self.store(1, 8), keep=1, hidden=(0,), how=ForwardOptions())
        assert scores.logits_BTV.shape == (1, 1, model.vocabulary)
        assert scores.hidden[0].shape[:2] == ids_BT.shape

    def asked(self, new: int = 6) -> list[Request]:
        """Return ragged requests, some of which stop early."""
        return harness.requests(harness.random_prompts(LENGTHS, 16), new, {5, 11})

    def check(self, options: dict[str, Any], right: fakes.Right = RIGHT["by-turns"], tree: bool = False) -> None:
        """Decode with drafts of which ``right`` tokens are right, and compare with the model's own continuations."""
        asked, truth = self.asked(), _truth.setdefault(type(self), [])
        if not truth:
            truth += [self.continuation(one.prompt_ids, one.max_new_tokens + BEYOND) for one in asked]
        drafter = (fakes.ScriptedTree if tree else fakes.ScriptedDrafter)(truth, right)
        pipe = harness.pipeline(self.model(), drafter, **{"draft_length": 3, **options})  # type: ignore[arg-type]
        pipe.parts.runner = strict(pipe.parts.runner, Model)
        for request, result in zip(asked, harness.decode(pipe, asked), strict=True):
            ids = truth[request.index][: request.max_new_tokens]
            ends = [place + 1 for place, token in enumerate(ids) if token in request.stop_token_ids]
            assert result.error is None
            assert result.token_ids == ids[: ends[0] if ends else None]

    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    @pytest.mark.parametrize("batch_size", [1, 3])
    def test_chains(self, align: str, batch_size: int) -> None:
        """Every alignment decodes to the model's own continuations, with all invariants."""
        self.check({"align": align, "batch_size": batch_size, "check": True})

    @pytest.mark.parametrize("align", standard.FOR_TREES)
    def test_trees(self, align: str) -> None:
        """So does every alignment that places trees."""
        self.check({"align": align, "batch_size": 3, "check": True}, BY_ROW, tree=True)

    def test_prompts_in_pieces(self) -> None:
        """Prompts that are read a few tokens at a time are the same prompts."""
        self.check({"batch_size": 2, "schedule": standard.READING_IN_PIECES})
