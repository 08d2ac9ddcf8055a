"""Drafts compared with those of the library `speculators`, which computes them from the same files: ``make test-speculators``.

The library needs an environment of its own, since it pins another release of transformers. Heads are made by the library with
random weights and saved by it. They draft in a batch in which rows accept unlike numbers of tokens. For each draft the library's
own forward, which is that of its training, gives the logits of the same row and the same tokens.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.formats.recognised import format_of
from specframe_testing import harness, zoo
from specframe_testing.heads.scripted import ScriptedCalls, scripted
from speculators.models.dflash import core as dflash
from speculators.models.dflash.config import DFlashSpeculatorConfig
from speculators.models.dspark import core as dspark
from speculators.models.dspark.config import DSparkSpeculatorConfig
from speculators.models.eagle3 import core as eagle3
from speculators.models.eagle3.config import Eagle3SpeculatorConfig
from speculators.models.peagle import core as peagle
from speculators.models.peagle.config import PEagleSpeculatorConfig
from transformers import LlamaConfig, Qwen3Config

from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry

DRAFT = 4
"""Tokens of a draft."""

Logits = Callable[[Any, torch.Tensor, list[int], list[int]], torch.Tensor]
"""(the library's model, hidden states of the row's tokens but the last (1, T, L D), ids, tokens drafted) -> logits (K, V_d)."""


def made_by_the_library() -> Any:
    """Return the module that makes the fixtures, for heads of the size of the small target."""
    place = Path(__file__).parents[1] / "tests" / "fixtures" / "make.py"
    specification = importlib.util.spec_from_file_location("make_fixtures", place)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    config = target().config
    module.HIDDEN, module.VOCABULARY, module.DRAFTED = config.hidden_size, config.vocab_size, config.vocab_size // 2
    return module


def target() -> Any:
    """Return the target, the same for all heads."""
    return zoo.build("qwen3")


def padded(values_1TX: torch.Tensor, count: int) -> torch.Tensor:
    """Return values with as many rows of zeros behind them, which nothing that is compared attends to."""
    return torch.nn.functional.pad(values_1TX, (0, 0, 0, count))


def of_eagle3(model: Any, hidden: torch.Tensor, ids: list[int], drafted: list[int]) -> torch.Tensor:
    """Return the logits of an EAGLE-3 head: step k feeds k drafted tokens behind each pair, so the last pair's are the draft's."""
    after = torch.tensor([[*ids[1:], *drafted, 0]])
    seen = make.caught(model.lm_head)
    model(padded(hidden, after.shape[1] - hidden.shape[1]), after, torch.zeros_like(after), ttt_steps=len(drafted) + 1)
    return torch.stack([one[len(ids) - 2] for one in seen])


def of_peagle(model: Any, hidden: torch.Tensor, ids: list[int], drafted: list[int]) -> torch.Tensor:
    """Return the logits of a P-EAGLE head: after the last pair and after the masks behind it."""
    after, last = torch.tensor([[*ids[1:], *[0] * DRAFT]]), len(ids) - 2
    pairs, masks = torch.arange(last + 1), torch.arange(1, DRAFT)
    chosen = torch.cat([pairs, masks * 0 + last]), torch.cat([pairs * 0, masks])
    peagle.generate_cod_sample_indices = lambda **_: chosen
    peagle.compute_metrics = lambda **_: (torch.zeros(()), {})
    seen = make.caught(model.lm_head)
    states = torch.zeros(1, after.shape[1], target().config.hidden_size)
    model(padded(hidden, DRAFT), after, torch.zeros_like(after), verifier_last_hidden_states=states)
    return seen[0][last:]


def of_a_block(model: Any, hidden: torch.Tensor, ids: list[int], drafted: list[int]) -> torch.Tensor:
    """Return the logits of a DFlash or DSpark head: of the block at the row's last token."""
    anchor, count = len(ids) - 1, model.block_size
    given = torch.tensor([[*ids, *drafted, *[0] * (count + 1 - len(drafted))]])
    core, seen = dspark if isinstance(model, dspark.DSparkDraftModel) else dflash, []
    dflash.select_anchors = lambda *_: (torch.tensor([anchor]), torch.tensor([True]))
    core.compute_metrics = lambda logits, *rest, **_: (seen.append(logits), (torch.zeros(()), {}))[1]
    states = torch.zeros(1, given.shape[1], target().config.hidden_size)
    ones = torch.ones_like(given, dtype=torch.float)
    model(padded(hidden, given.shape[1] - hidden.shape[1]), given, ones, states, torch.zeros_like(given), max_anchors=1)
    return seen[0][0][-DRAFT:]


make = made_by_the_library()


def eagle_3(config: Any, drafted: int | None = None, **flags: Any) -> tuple[Any, Logits]:
    """Return an EAGLE-3 head."""
    given = make.options("eagle3", transformer_layer_config=config, draft_vocab_size=drafted or make.VOCABULARY)
    return eagle3.Eagle3DraftModel(
        Eagle3SpeculatorConfig(**given, eagle_aux_hidden_state_layer_ids=[0, 1, 2], **flags)
    ), of_eagle3


def p_eagle(count: int) -> tuple[Any, Logits]:
    """Return a P-EAGLE head."""
    config = make.layers(LlamaConfig, count)
    given = make.options("peagle", transformer_layer_config=config, draft_vocab_size=make.DRAFTED, mask_token_id=3)
    return peagle.PEagleDraftModel(
        PEagleSpeculatorConfig(**given, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    ), of_peagle


def a_block(kind: str, *windows: int | None, **more: Any) -> tuple[Any, Logits]:
    """Return a DFlash or DSpark head with a layer for each sliding window; its first slot predicts where it is DSpark's."""
    slides = [one for one in windows if one]
    kinds = ["sliding_attention" if one else "full_attention" for one in windows]
    config = make.layers(
        Qwen3Config,
        len(windows),
        layer_types=kinds,
        sliding_window=max(slides, default=None),
        use_sliding_window=bool(slides),
    )
    given = make.options(kind, transformer_layer_config=config, draft_vocab_size=make.DRAFTED, mask_token_id=3)
    given |= {"block_size": DRAFT + (kind == "dflash"), "aux_hidden_state_layer_ids": [1, 2], **more}
    if kind == "dflash":
        return dflash.DFlashDraftModel(DFlashSpeculatorConfig(**given)), of_a_block
    return dspark.DSparkDraftModel(DSparkSpeculatorConfig(**given)), of_a_block


ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
HEADS: dict[str, Callable[[], tuple[Any, Logits]]] = {
    "eagle3": lambda: eagle_3(make.layers(LlamaConfig)),
    "eagle3-reduced": lambda: eagle_3(make.layers(LlamaConfig), make.DRAFTED),
    "eagle3-two-layers": lambda: eagle_3(make.layers(LlamaConfig, 2), make.DRAFTED),
    "eagle3-qwen3": lambda: eagle_3(make.layers(Qwen3Config), make.DRAFTED),
    "eagle3-biases": lambda: eagle_3(make.layers(LlamaConfig, attention_bias=True), make.DRAFTED),
    "eagle3-theta": lambda: eagle_3(make.layers(LlamaConfig, **ROPE)),
    "eagle3-normed-residual": lambda: eagle_3(make.layers(LlamaConfig), norm_before_residual=True),
    "eagle3-norm-before-fc": lambda: eagle_3(make.layers(LlamaConfig), norm_before_fc=True, norm_output=True),
    "eagle3-fc-norm": lambda: eagle_3(make.layers(LlamaConfig), make.DRAFTED, fc_norm=True),
    "peagle": lambda: p_eagle(1),
    "peagle-four-layers": lambda: p_eagle(4),
    "dflash": lambda: a_block("dflash", None, None),
    "dflash-five-layers": lambda: a_block("dflash", *[None] * 5),
    "dflash-windows": lambda: a_block("dflash", 4, None, 4),
    "dflash-windows-both-ways": lambda: a_block("dflash", 4, None, sliding_window_non_causal=True),
    "dspark": lambda: a_block("dspark", None, None, markov_rank=4),
    "dspark-gated": lambda: a_block("dspark", None, None, markov_rank=4, markov_head_type="gated"),
    "dspark-rnn": lambda: a_block("dspark", None, 4, markov_rank=4, markov_head_type="rnn"),
}


@pytest.mark.parametrize("name", HEADS)
def test_every_draft_is_the_librarys(name: str, tmp_path: Path) -> None:
    """In a ragged batch, whatever is accepted, each draft's logits and its greedy token are those that the library computes."""
    torch.manual_seed([*HEADS].index(name))
    built, logits_of = HEADS[name]()
    model, tokens = make.filled(built), target()
    if logits_of is of_a_block:  # the library takes the embedding from the target
        model.embed_tokens.weight.data = tokens.get_input_embeddings().weight.detach()
    model.save_pretrained(tmp_path)
    checkpoint = Checkpoint.open(str(tmp_path))
    found = format_of(checkpoint)
    asked, drafts = (
        harness.requests(harness.random_prompts([6, 3, 12, 4], zoo.VOCABULARY), [10, 14, 7, 11]),
        list[ScriptedCalls](),
    )
    for length in (DRAFT, DRAFT - 2):  # a shorter draft is the beginning of the whole block
        drafter, seen = strategy(registry(), "drafter", f"{found.drafter},checkpoint={tmp_path}"), list[ScriptedCalls]()
        scripted(drafter, seen, harness.truth(tokens, asked), lambda place: place % 4 > 0)
        harness.check(harness.pipeline(tokens, drafter, batch_size=3, draft_length=length), asked)
        whole = {(*one.ids, -1, *one.drafted): one for one in seen if one.count == length}
        assert len(whole) > 20, "hardly anything was drafted"
        drafts += whole.values()
    for one in drafts:
        with torch.no_grad():
            states = tokens(torch.tensor([one.ids]), output_hidden_states=True).hidden_states
            hidden = torch.cat(
                [states[layer][:, :-1] for layer in found.layers(checkpoint, tokens.config.num_hidden_layers)], -1
            )
            wanted_V = logits_of(model, hidden, one.ids, one.drafted)[len(one.drafted)]
        where = f"{len(one.drafted) + 1} of {one.count} after {len(one.ids)} tokens"
        assert torch.allclose(one.logits_V, wanted_V, atol=2e-3, rtol=1e-3), where
        assert int(one.logits_V.argmax()) == int(wanted_V.argmax()), where
