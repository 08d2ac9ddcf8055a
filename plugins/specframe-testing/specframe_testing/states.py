"""A fake kind of state, and a fake model that keeps it: one token too many or too few in the state, and the output differs.

Tensor names carry their shape: B rows, T tokens fed per row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers import Cache

from specframe.contracts.states import Inputs, LayerState, Parts, StateShape
from specframe.plugins.hookspecs import Register, hookimpl
from specframe.plugins.registry import offer, registry
from specframe_testing.fakes import FakeConfig, FakeModel, mixed

NAME, DISTRIBUTION = "fake-hash", "specframe's test kit"
"""The name of the fake kind, and who offers it."""


class RunningHash(torch.nn.Module):
    """A layer whose state is a hash of all tokens in their order, and their number."""

    def forward(self, ids_BT: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        """Return the hash after each token, (B, T); the state is an attribute of the model's own cache."""
        states_B2 = getattr(cache, "running_hash", None)
        if states_B2 is None:
            states_B2 = ids_BT.new_zeros(len(ids_BT), 2)
        states_BT2 = chained(states_B2, ids_BT)
        if cache is not None:
            cache.running_hash = states_BT2[:, -1]  # type: ignore[attr-defined]
        return states_BT2[..., 0]


def chained(states_B2: torch.Tensor, ids_BT: torch.Tensor, real_BT: torch.Tensor | None = None) -> torch.Tensor:
    """Return the states (B, T, 2) after each token of rows, of which only real ones count: those of :func:`taken`, in few steps."""
    hash_B, count_B = states_B2.unbind(-1)
    counts_BT = count_B[:, None] + (torch.ones_like(ids_BT) if real_BT is None else real_BT).cumsum(1)
    added_BT = torch.add(ids_BT, counts_BT, alpha=8191) - 8190
    hashes = []
    for place, added_B in enumerate(added_BT.unbind(1)):
        next_B = mixed(torch.add(added_B, hash_B, alpha=131))
        hash_B = next_B if real_BT is None else next_B.where(real_BT[:, place], hash_B)
        hashes.append(hash_B)
    return torch.stack([torch.stack(hashes, dim=1), counts_BT], dim=-1)


def taken(states_B2: torch.Tensor, token_B: torch.Tensor) -> torch.Tensor:
    """Return the states after one more token."""
    hash_B, count_B = states_B2.unbind(-1)
    return torch.stack([mixed(hash_B * 131 + token_B + 1 + count_B * 8191), count_B + 1], dim=-1)


class FakeHash:
    """The kind of state of :class:`RunningHash`: of whole numbers, which have the same bits whatever else is computed."""

    offers = frozenset({"bitwise"})

    def by_token(self) -> FakeHash:
        """Return the kind itself."""
        return self

    def layers(self, model: torch.nn.Module) -> Mapping[int, torch.nn.Module]:
        """Return the layer of a model that has one."""
        memory = getattr(model, "memory", None)
        return {model.memory_layer: memory} if isinstance(memory, RunningHash) else {}  # type: ignore[dict-item]

    def shape(self, layer: torch.nn.Module) -> StateShape:
        """Return the shape of two numbers."""
        return StateShape(((2,),), (torch.long,))

    def forward(self, layer: torch.nn.Module, state: LayerState) -> Callable[..., torch.Tensor]:
        """Return what goes on from the states, token by token, each from its parent's."""

        def hashes(ids_BT: torch.Tensor, cache: Any) -> torch.Tensor:
            (before_B2,) = state.before
            if state.parents_BT is None:
                after_BT2 = chained(before_B2, ids_BT, state.real_BT)
                state.note((ids_BT,), lambda: (after_BT2[:, -1],))
                return after_BT2[..., 0]
            after = list[torch.Tensor]()
            for place, token_B in enumerate(ids_BT.unbind(1)):
                last_B2 = before_B2
                if after:
                    parent_B = state.parents_BT[:, place].expand(len(ids_BT))
                    every_BP2 = torch.stack([before_B2, *after], dim=1)
                    last_B2 = every_BP2[torch.arange(len(ids_BT), device=ids_BT.device), parent_B + 1]
                after.append(taken(last_B2, token_B).where(state.real_BT[:, place, None], last_B2))
            state.note((ids_BT,), None)
            return torch.stack(after, dim=1)[..., 0]

        return hashes

    def advance(self, layer: torch.nn.Module, before: Parts, inputs: Inputs, counts_B: torch.Tensor) -> Parts:
        """Return the states after the first tokens of each row."""
        (states_B2,), (ids_BT,) = before, inputs
        if not ids_BT.shape[1]:
            return (states_B2,)
        real_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device) < counts_B[:, None]
        return (chained(states_B2, ids_BT, real_BT)[:, -1],)


class FakeStateConfig(FakeConfig):
    """Configuration of :class:`FakeStateModel`."""

    model_type = "specframe-fake-state"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.num_hidden_layers = 2
        self.layer_types = ["linear_attention", "full_attention"]


class FakeStateModel(FakeModel):
    """A fake with two layers: the first keeps a state, the second attends. The next token is a hash of both.

    Keys and values are those of :class:`FakeModel`, and the state is a hash of the tokens in their order: a token that the state
    took in twice, too early or not at all changes the output, even where all keys and values are right.
    """

    config_class = FakeStateConfig  # type: ignore[assignment]
    memory_layer = 0
    attending = 1

    def __init__(self, config: FakeStateConfig) -> None:
        super().__init__(config)
        self.memory = RunningHash()

    def remembered(self, ids_BT: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        """Return what the first layer adds to each token's hash, (B, T)."""
        hashes_BT: torch.Tensor = self.memory(ids_BT, cache)
        return hashes_BT


class Kinds:
    """A plugin with the fake kind."""

    @hookimpl
    def specframe_register_state_kinds(self, register: Register) -> None:
        """Register the fake kind."""
        register(NAME, FakeHash)


@contextlib.contextmanager
def known() -> Iterator[None]:
    """Have the fake kind registered inside the block."""
    offer(registry(), Kinds(), DISTRIBUTION)
    try:
        yield
    finally:
        del registry().entries["state kind"][NAME]


def fake_state_target(vocabulary: int = 61, seed: int = 0, context: int = 256, eos: int = 0) -> FakeStateModel:
    """Return a fake target that keeps a state."""
    config = FakeStateConfig(vocab_size=vocabulary, max_position_embeddings=context, seed=seed, eos_token_id=eos)
    return FakeStateModel(config).eval()
