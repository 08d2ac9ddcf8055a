"""Checkpoints of heads that draft in one pass, and of MTP layers: what they mean, and what is wrong with them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from edited_heads import edited, without
from specframe_heads.blocks.block_drafter import DSpark
from specframe_heads.blocks.block_formats import evenly
from specframe_heads.blocks.markov import confident
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.formats.recognised import drafter_of, format_of
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_testing import harness, zoo
from specframe_testing.heads import block_heads, checkpoints, mtp
from transformers import LlamaConfig, LlamaForCausalLM

from specframe.contracts.drafts import Draft
from specframe.contracts.round import Batch
from specframe.errors import SpecframeError
from specframe.text.sampling import Sampling

LAYERS = 5
SHIFTED: dict[str, tuple[Callable[..., str], dict[str, Any], int]] = {
    "speculators dflash": (block_heads.speculators, {"hidden": 32, "ids": (2, 1)}, 2),
    "speculators dspark": (block_heads.speculators, {"kind": "dspark", "hidden": 32, "ids": (2, 1)}, 2),
    "z-lab DFlash": (block_heads.z_lab, {"ids": (2, 1)}, 3),
    "DeepSpec": (block_heads.deepspec, {"ids": (2, 1)}, 3),
    "speculators peagle": (block_heads.peagle, {"hidden": 32, "depth": 1, "ids": (2, 1, 3)}, 2),
}


@pytest.mark.wide
@pytest.mark.parametrize("form", SHIFTED)
def test_an_offset_of_one_lowers_acceptance(form: str, tmp_path: Path) -> None:
    """A head drafts rightly from the hidden states that its format means, and wrongly from those beside them."""
    target = block_heads.counting(LAYERS)
    save, options, state = SHIFTED[form]
    size = {} if "peagle" in form else {"size": 16}
    folder = block_heads.plant(save(tmp_path / "head", target, **options, **size), LAYERS, state)
    found = format_of(Checkpoint.open(folder))
    assert found.name == form
    asked = harness.requests([[7] * 9, [21], [4, 4], [30] * 5], 9)
    shares = {}
    for shift in (-1, 0, 1):
        pipe = harness.pipeline(target, f"{found.drafter},checkpoint={folder},shift={shift}", draft_length=3)
        harness.check(pipe, asked)
        shares[shift] = pipe.report.num_accepted_draft_tokens / pipe.report.num_draft_tokens
    assert shares[0] > 0.6
    assert max(shares[-1], shares[1]) < 0.2


def test_a_row_ends_before_its_first_unlikely_token() -> None:
    """The count is that of the tokens before the first whose chance is too small, whatever comes after it."""
    chances_BK = torch.tensor([[0.9, 0.2, 0.9], [0.9, 0.9, 0.9], [0.1, 0.9, 0.9]])
    assert confident(chances_BK, 0.5).tolist() == [1, 3, 0]
    assert confident(chances_BK, 0.0).tolist() == [3, 3, 3]


def chance_of(draw: Any, target: Any, count: int = 4000) -> float:
    """Return the chance of counts as far from the target's own as those of ``count`` drawn second and third tokens.

    The first token comes from reading the prompt; the two after it are the first draft's.
    """
    prompt, size = [1, 2], target.config.vocab_size
    new = torch.tensor([*itertools.product(range(size), repeat=3)])
    with torch.no_grad():
        logits = target(torch.cat([torch.tensor([prompt]).expand(len(new), -1), new], dim=1)).logits[:, 1:-1].double()
    whole = count * logits.softmax(-1).gather(2, new[..., None])[..., 0].prod(1)
    expected = whole.view(size, -1).sum(0)
    found = torch.zeros(size * size, dtype=torch.float64)
    for result in draw([prompt] * count, 4, sampling=Sampling(temperature=1.0)):
        _, second, third = result.token_ids[:3]
        found[second * size + third] += 1
    often = expected >= 5
    seen, meant = (torch.cat([one[often], one[~often].sum()[None]]) for one in (found, expected))
    statistic = ((seen - meant) ** 2 / meant.clamp(min=1e-9)).sum()
    return float(torch.special.gammaincc(torch.tensor(float(often.sum()) / 2, dtype=torch.float64), statistic / 2))


def of_five_tokens() -> LlamaForCausalLM:
    """Return a target small enough for all continuations to be enumerated."""
    config = LlamaConfig(
        vocab_size=5, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=32,
        initializer_range=0.7, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return LlamaForCausalLM(config).eval()


@pytest.mark.wide
@pytest.mark.parametrize(("rule", "shape"), [("rejection", "2/2"), ("traversal,siblings=likely", "dynamic")])
def test_trees_of_one_pass_draw_from_the_target(rule: str, shape: str, tmp_path: Path) -> None:
    """Sampled tokens have the target's distribution where drafts are trees that one pass has given."""
    target = of_five_tokens()
    folder = block_heads.speculators(tmp_path / "head", target, "dspark", hidden=16, ids=(0, 1))
    tree = {"tree": "dynamic", "nodes": 6} if shape == "dynamic" else {"branch": shape}
    pipe = harness.pipeline(target, DSpark(folder, **tree), accept=rule, draft_length=2, batch_size=800, seed=3)
    assert chance_of(pipe.generate, target) > 1e-3


class Peeking(DSpark):
    """A drafter that decides on all tokens by the last of them: the fault that must not be."""

    def _shortened(self, batch: Batch, draft: Draft, states_BKH: torch.Tensor) -> Draft:
        counts_B = draft.nodes * (draft.tokens_BN[:, -1] == 0).long()
        return Draft(draft.tokens_BN, draft.logits_BNV, counts_B=counts_B)


@pytest.mark.wide
@pytest.mark.parametrize(
    "way", [{"confidence": 0.5}, pytest.param({"token_cost": 0.1}, marks=pytest.mark.slow)], ids=str
)
def test_shortened_drafts_draw_from_the_target(way: dict[str, float], tmp_path: Path) -> None:
    """With drafts that end by confidence, sampled tokens have the target's distribution; looking at a later one is biased."""
    target = of_five_tokens()
    folder = block_heads.speculators(tmp_path / "head", target, "dspark", hidden=16, ids=(0, 1))
    options = {"accept": "block", "draft_length": 2, "batch_size": 800, "seed": 3}
    assert chance_of(harness.pipeline(target, DSpark(folder, **way), **options).generate, target) > 1e-3
    biased = harness.pipeline(target, Peeking(folder, confidence=0.5), **options)
    assert chance_of(biased.generate, target, 8000) < 1e-9


WRONG: dict[str, tuple[Callable[..., str], dict[str, Any], dict[str, Any], str]] = {
    "another-target": (block_heads.z_lab, {}, {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [0]}},
        r"is a head for another target: expected 1 hidden states of size 64, got 32"),
    "no-such-layer": (block_heads.z_lab, {}, {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 7]}},
        r"has hidden states 0 \(its embedding\) to 2, and 3 before its final norm, got 8"),
    "no-mask": (block_heads.deepspec, {}, {"mask_token_id": None}, r"expected a whole number mask_token_id, got None"),
    "other-layers": (block_heads.deepspec, {}, {"model_type": "gemma4"}, r"has layers of 'gemma4': expected those of 'qwen3'"),
    "a-tensor-is-missing": (block_heads.z_lab, {}, {"tensors": without("layers.1.mlp.up_proj.weight")},
        r"lacks the tensor 'layers.1.mlp.up_proj.weight'"),
    "no-d2t": (block_heads.speculators, {"drafted": 50}, {"tensors": without("d2t")},
        r"logits for 50 of 97 tokens and no mapping: expected a tensor d2t"),
    "truncated": (block_heads.speculators, {}, {"cut": 100}, r"model.safetensors of .* cannot be read: expected a whole file"),
    "markov-kind": (block_heads.deepspec, {}, {"markov_head_type": "lstm"}, r"Markov head of kind 'lstm': expected one of vanilla"),
    "peagle-no-mask": (block_heads.peagle, {}, {"tensors": without("mask_hidden")},
        r"a tensor 'mask_hidden' with 96 values, got none"),
    "pard-mask": (block_heads.pard, {}, {"pard_token": 97}, r"has pard_token 97: expected an id that is embedded, 0 to 96"),
}  # fmt: skip


@pytest.mark.wide
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_in_one_sentence(case: str, tmp_path: Path) -> None:
    """A checkpoint that does not fit, or is not whole, is refused in one sentence with what was expected and what was got."""
    save, options, changes, message = WRONG[case]
    target = zoo.build("qwen3")
    folder = save(tmp_path / "head", target, **options)
    if cut := changes.get("cut"):
        file = Path(folder, "model.safetensors")
        file.write_bytes(file.read_bytes()[:-cut])
    else:
        edited(folder, **changes)
    drafter = drafter_of(folder) or f"dflash,checkpoint={folder}"
    with pytest.raises(SpecframeError, match=message) as told:
        harness.decode(harness.pipeline(target, drafter), harness.requests([[5, 6]], 4))
    assert "\n" not in str(told.value)


@pytest.mark.wide
def test_options_that_a_head_cannot_serve_are_refused(tmp_path: Path) -> None:
    """A confidence from a head without one, MTP layers of a model made in memory or without any: one sentence each."""
    target = zoo.build("qwen3")
    plain = block_heads.deepspec(tmp_path / "plain", target, head=None)
    target.save_pretrained(tmp_path / "target")
    stored = type(target).from_pretrained(tmp_path / "target")
    for one, drafter, message in (
        (target, f"dspark,checkpoint={plain},confidence=0.5", "has no confidence head: expected one for the options"),
        (target, f"dspark,checkpoint={plain},confidence=2", "confidence: expected a number from 0 to 1, got 2"),
        (target, f"peagle,checkpoint={plain}", "expected one for the drafter 'peagle', so ask for 'dspark'"),
        (target, "mtp", "expected a target that was loaded from a directory or the hub"),
        (stored, "mtp", r"has no MTP layers: expected tensors model.layers.2.\*, mtp.\* or mtp_layers.0.\*"),
    ):
        with pytest.raises(SpecframeError, match=message):
            harness.decode(harness.pipeline(one, drafter), harness.requests([[5, 6]], 4))


@pytest.mark.wide
@pytest.mark.parametrize(("targets", "layers", "ids"), [(28, 1, (14,)), (48, 5, (1, 12, 23, 34, 45))])
def test_ids_that_a_dflash_file_leaves_out(targets: int, layers: int, ids: tuple[int, ...]) -> None:
    """z-lab's default: as many layers as the head has, evenly from the second to the third before the last; one is the middle."""
    assert evenly(targets, layers) == ids


@pytest.mark.wide
def test_vocabularies_without_a_mapping() -> None:
    """Logits for padding are cut, and those that lack for the target's padding are minus infinity."""
    logits = torch.arange(6.0)
    assert DraftVocabulary.of("a head", 6, 6, 4, None).full(logits).tolist() == [0, 1, 2, 3]
    padded = DraftVocabulary.of("a head", 6, 6, 8, None).full(logits)
    assert padded.tolist() == [*range(6), -torch.inf, -torch.inf]


DEPTH, K = 8, 4

HEADS: dict[str, Callable] = {
    "speculators": lambda folder, target: checkpoints.planted_eagle3(folder, target, 3, [1, 3, 6]),
    "speculators, no ids": lambda folder, target: checkpoints.planted_eagle3(folder, target, 4, None),
    "authors": lambda folder, target: checkpoints.planted_eagle3(folder, target, 4, None, "authors"),
    "sglang": lambda folder, target: checkpoints.planted_eagle3(folder, target, 4, [1, 3, 6], "sglang"),
    "eagle-1": lambda folder, target: checkpoints.planted_eagle1(folder, target),
    "eagle-1, speculators": lambda folder, target: checkpoints.planted_eagle1(folder, target, "speculators"),
    "mtp": mtp.planted,
}


def acceptance(target, folder: Path, shift: int = 0, options: str = "", name: str = "eagle", **more) -> float:
    """Return the mean acceptance length of a head, fed hidden states with a shift."""
    asked = harness.requests(harness.random_prompts([3, 1], 12), 16)
    drafter = f"{name},checkpoint={folder},shift={shift}{options}"
    pipe = harness.pipeline(target, drafter, batch_size=3, draft_length=f"fixed,length={K}", **more)
    harness.check(pipe, asked)
    return pipe.report.mean_acceptance_length


@pytest.mark.wide(but=["authors"])
@pytest.mark.parametrize("layout", HEADS)
def test_an_offset_lowers_the_acceptance_of_planted_heads(layout: str, tmp_path: Path) -> None:
    """As the format is read nearly every draft token is accepted; with the layers before, or those after, hardly any is."""
    target = checkpoints.planted_target(DEPTH)
    folder = HEADS[layout](tmp_path, target)
    name = "mtp" if layout == "mtp" else "eagle"
    as_read = acceptance(target, folder, name=name)
    assert as_read > 1 + 0.6 * K  # the last draft of each row is cut by its limit
    for shift in (-1, 1):
        if shift < 0 or not layout.startswith(("eagle-1", "mtp")):  # nothing comes after the last state
            assert acceptance(target, folder, shift, name=name) < as_read - 0.4 * K
