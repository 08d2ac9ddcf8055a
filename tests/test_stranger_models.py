"""A model that is none of transformers, and stores that are none of the core's: they know the contracts alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from specframe_testing import harness, zoo
from specframe_testing.conformance import ModelSuite
from torch import nn

from specframe.contracts.cache import DenseView, KVShape, KVStore, Placement
from specframe.contracts.drafts import Block, Scores
from specframe.contracts.model import PLAIN, ForwardOptions
from specframe.contracts.requests import Request
from specframe.contracts.states import StateLayer
from specframe.errors import ModelError, PromptError, SpecframeError
from specframe.pipeline import Pipeline

VOCABULARY, CONTEXT, LAYERS, HEADS, SIZE = 31, 96, 2, 2, 8


class Transformer(nn.Module):
    """Weights of two layers of attention, in double precision: rounding decides nothing."""

    def __init__(self) -> None:
        super().__init__()
        width = HEADS * SIZE
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
            self.attention = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(LAYERS))
            self.output = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self.double().eval()


class Stranger:
    """A model as its author writes it who has read nothing but the contracts."""

    role, context, vocabulary = "target", CONTEXT, VOCABULARY
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.module = Transformer()
        self.state_layers: Mapping[int, StateLayer] = {}

    @property
    def kv_shapes(self) -> list[KVShape]:
        return [KVShape(HEADS, SIZE, SIZE, torch.float64)] * LAYERS

    def require(self, how: ForwardOptions, hidden: Iterable[int] = ()) -> None:
        if beyond := set(hidden) - {0, LAYERS}:
            raise ModelError(f"the model has hidden states 0 and {LAYERS}, got {sorted(beyond)}")

    def tokens_at_once(self, slots: int, how: ForwardOptions) -> int:
        return 12

    def by_lengths(self, how: ForwardOptions) -> bool:
        return False

    def leaves_out_padding(self, places: int, tokens: int) -> bool:
        return False

    @torch.inference_mode()
    def forward(
        self,
        block: Block,
        placement: Placement,
        store: KVStore,
        *,
        keep: int,
        hidden: tuple[int, ...] = (),
        how: ForwardOptions = PLAIN,
    ) -> Scores:
        store.expect(placement)
        seen_BTS, extent = placement.seen(), placement.key_index_BS.shape[1]
        net = self.module
        places_BT = placement.positions_BT.clamp(0, CONTEXT - 1)
        states_BTD = net.tokens(block.ids_BT.clamp(max=VOCABULARY - 1)) + net.positions(places_BT)
        found = {0: states_BTD}
        for layer, (attention, output) in enumerate(zip(net.attention, net.output, strict=True)):
            query, key, value = (
                part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in attention(states_BTD).chunk(3, dim=-1)
            )
            view = store.write(layer, key, value)
            assert isinstance(view, DenseView)
            scores = query @ view.keys[:, :, :extent].transpose(2, 3) / SIZE**0.5
            weights = scores.masked_fill(~seen_BTS[:, None], -1e9).softmax(-1)
            states_BTD = states_BTD + output((weights @ view.values[:, :, :extent]).transpose(1, 2).flatten(2)).tanh()
        found[LAYERS] = states_BTD
        logits_BTV = 4 * states_BTD[:, -keep:] @ net.tokens.weight.T
        return Scores(logits_BTV.float(), {number: found[number] for number in hidden})

    by_rows = None

    def require_decodable(self, request: Request) -> None:
        if len(request.prompt_ids) + request.max_new_tokens > CONTEXT:
            raise PromptError(f"the model takes {CONTEXT} tokens")


@pytest.mark.wide(but=["test_chains[3-ragged]"])
class TestStranger(ModelSuite):
    """The third party's model passes the suite."""

    def model(self) -> Stranger:
        return MODEL


@pytest.mark.wide(but=["test_chains[3-eqspec]"])
class TestOfTransformers(ModelSuite):
    """So does a model of transformers in the class of the core."""

    tolerance = 1e-3

    def model(self) -> Any:
        return QWEN


MODEL, QWEN = Stranger(), harness.pipeline(zoo.build("qwen3")).parts.runner


@pytest.mark.wide
def test_a_pipeline_on_a_strangers_model() -> None:
    """Prompts of ids are decoded with it, by lookup drafts, too, and what it refuses ends in its sentence."""
    plain, looked_up = (
        [result.token_ids for result in Pipeline(MODEL, drafter, generation_config=None).generate([[1, 2], [3]], 12)]
        for drafter in (None, "prompt-lookup")
    )
    suite = TestStranger()
    assert plain == looked_up == [suite.continuation(one, 12) for one in ([1, 2], [3])]
    (refused,) = Pipeline(MODEL, None).generate([[1, 2]], 500)
    assert refused.error == "the model takes 96 tokens"


@pytest.mark.wide
@pytest.mark.parametrize(
    ("given", "options", "told"),
    [
        (object(), {}, "or a loaded transformers model, got <object"),
        (type("Half", (), {"kv_shapes": []})(), {}, "target: expected a name or an object with .*, got Half without "),
        (MODEL, {"bitwise": True}, "bitwise: expected a model of transformers, got Transformer"),
        (MODEL, {"drafter": "model"}, "drafter 'model' needs a draft language model"),
    ],
    ids=["nothing", "half", "bitwise", "draft model"],
)
def test_what_cannot_be_had_is_refused(given: Any, options: dict[str, Any], told: str) -> None:
    """An object that is no model, and what needs a model of transformers, is refused in one sentence."""
    with pytest.raises(SpecframeError, match=told):
        list(Pipeline(given, **{"drafter": None, **options}).generate([[1]], 2))
