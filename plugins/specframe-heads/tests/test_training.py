"""Training of heads: what a lesson holds, what each loss looks at, interruptions, and the command."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from click.testing import CliRunner
from products import crossed
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.formats.recognised import format_of
from specframe_heads.target import Target
from specframe_heads.training import clover2, eagle3, training_loop
from specframe_heads.training.continuations import ContinuationText, texts
from specframe_heads.training.head_kinds import LEARNERS, learner_class
from specframe_heads.training.learner import frequent, mean
from specframe_heads.training.training_batches import Lesson, Reader
from specframe_testing import harness, zoo

from specframe.cli import cli
from specframe.errors import OptionError
from specframe.reference import reference_decode

KINDS = tuple(LEARNERS)
PROMPTS = harness.random_prompts([5, 2, 9, 4], zoo.VOCABULARY)


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(zoo.build("qwen3", num_hidden_layers=4).requires_grad_(False))


@pytest.fixture(scope="module")
def written(target: Target) -> list[ContinuationText]:
    return [ContinuationText([*one, *reference_decode(target.model, list(one), 12)], len(one)) for one in PROMPTS]


def made(kind: str, target: Target, **options: Any) -> Any:
    torch.manual_seed(0)
    options |= {"layers": 2} if kind == "dflash" else {}
    return learner_class(kind)(target=target, places=3, **options)


def test_places_look_ahead(target: Target, written: list[ContinuationText]) -> None:
    """Place k after token t is about the token t + k + 2, which the target foresees at token t + k + 1."""
    lesson = Reader(target.model, [4]).read(written)
    for place in range(3):
        ahead_BT, counts_BT = lesson.ahead(lesson.ids_BT, place), lesson.counts(place)
        for row, text in enumerate(written):
            for token in range(lesson.ids_BT.shape[1] - 1):
                known = token + 1 + place < len(text.ids)
                assert bool(counts_BT[row, token]) == known
                assert not known or int(ahead_BT[row, token]) == text.ids[token + 1 + place]


@pytest.mark.wide
@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_eagle_is_trained_on_what_it_drafts(
    layers: int, target: Target, written: list[ContinuationText], tmp_path: Path
) -> None:
    """The logits that are trained are those of the drafter's own modules, fed true pairs and then its own states, step by step."""
    ids = torch.tensor(sorted({token for text in written for token in text.ids} | set(range(40))))
    head = made("eagle3", target, ids=ids, layers=layers)
    for weight in (one for one in head.parameters() if one.requires_grad):
        weight.copy_(torch.randn(weight.shape) * 0.2).copy_(weight.bfloat16())  # as it is written
    head.save(tmp_path)
    checkpoint = Checkpoint.open(str(tmp_path))
    drafter = format_of(checkpoint).made(checkpoint, target)
    assert format_of(checkpoint).layers(checkpoint, target.layers) == head.layers
    assert drafter.vocabulary.ids.tolist() == ids.tolist()
    lesson = Reader(target.model, head.layers).read(written[:1])
    trained = head.predicted(lesson, 3)
    fused_1TD = drafter.fuse(torch.cat([lesson.hidden[one] for one in head.layers], dim=-1))
    for start in (0, 3, 6):
        features_1TD, fed_1T = fused_1TD[:, : start + 1], lesson.ids_BT[:, 1 : start + 2]
        for place, logits_BTV in enumerate(trained):
            states_1TD = drafter.backbone(fed_1T, features=features_1TD).logits
            logits_1V = drafter.logits(states_1TD[:, -1])
            torch.testing.assert_close(logits_1V[0], logits_BTV[0, start], atol=2e-3, rtol=2e-3)
            features_1TD = torch.cat([features_1TD, drafter.fed_back(states_1TD[:, -1:])], dim=1)
            fed_1T = lesson.ids_BT[:, 1 : start + 3 + place]


DECAYS = {"clover2": clover2.DECAY, "eagle3": eagle3.DECAY}
"""The weight of each place, times that of the place before, of the kinds that are taught distributions."""


def least(kind: str, lesson: Lesson) -> float:
    """Return the least that a loss can be: the entropy of the distributions that are taught, or nothing."""
    if kind not in DECAYS:
        return 0.0
    entropy_BT = torch.distributions.Categorical(logits=lesson.logits_BTV).entropy()
    means = (mean(lesson.ahead(entropy_BT, place), lesson.counts(place)) for place in range(3))
    return float(sum(DECAYS[kind] ** place * one for place, one in enumerate(means)))


@pytest.mark.wide
@pytest.mark.parametrize("kind", crossed(KINDS))
def test_training_helps(kind: str, target: Target, written: list[ContinuationText], tmp_path: Path) -> None:
    """The loss falls, and what is written decodes exactly, with drafts that are accepted."""
    head, told = made(kind, target), []
    lesson = Reader(target.model, head.layers).read(written)
    floor = least(kind, lesson)
    with torch.no_grad():
        loss = float(head.loss(lesson, 3)) - floor
    plan = training_loop.TrainingPlan(40, 60, rate=5e-3)
    training_loop.train(head, written, plan, tmp_path / "work", lambda step, loss: told.append(step))
    assert told == list(range(1, 41))
    with torch.no_grad():
        assert float(head.loss(lesson, 3)) - floor < 0.8 * loss
    head.save(tmp_path / "head")
    assert head.places_at(0.0) == (1 if kind == "eagle3" else 3)
    assert head.places_at(eagle3.GROWN) == 3
    chain = ",tree=chain" if kind == "medusa" else ""
    pipe = harness.pipeline(target.model, f"{tmp_path / 'head'}{chain}", draft_length=3, batch_size=3)
    harness.check(pipe, harness.requests(PROMPTS, 12))
    assert pipe.report.draft_acceptance_rate > 0.1


@pytest.mark.wide
@torch.no_grad()
def test_blocks_see_nothing_after_their_anchor(target: Target, written: list[ContinuationText]) -> None:
    """The logits of a block do not change with the features of its anchor and of what follows it; they do with those before."""
    head = made("dflash", target)
    lesson = Reader(target.model, head.layers).read(written)
    anchors_B1 = torch.full((len(written), 1), 6)
    whole = head.blocks(lesson, anchors_B1)
    for place, same in ((6, True), (9, True), (5, False)):
        hidden = {number: states.clone() for number, states in lesson.hidden.items()}
        for states_BTD in hidden.values():
            states_BTD[:, place] += 1
        found = head.blocks(attrs.evolve(lesson, hidden=hidden), anchors_B1)
        assert torch.allclose(found, whole) == same
    both = head.blocks(lesson, torch.full((len(written), 2), 6))
    torch.testing.assert_close(both[:, 1:], whole, atol=1e-4, rtol=1e-4)


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_training_resumes_where_it_was_cut_off(
    kind: str, target: Target, written: list[ContinuationText], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that stops after a checkpoint ends with the weights of one that was not stopped."""
    monkeypatch.setattr(training_loop, "KEPT_EVERY", 4)

    def trained(folder: Path, cut_off: int | None = None) -> dict[str, torch.Tensor]:
        head = made(kind, target)

        def told(step: int, loss: float) -> None:
            if step == cut_off:
                raise KeyboardInterrupt

        training_loop.train(head, written, training_loop.TrainingPlan(9, 40), folder, told)
        return {name: one.detach() for name, one in head.named_parameters() if one.requires_grad}

    whole = trained(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", cut_off=6)
    resumed = trained(tmp_path / "cut")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.wide
@pytest.mark.parametrize("kind", crossed([*reversed(KINDS)]))
def test_training_begins_with_a_trained_head(
    kind: str, target: Target, written: list[ContinuationText], tmp_path: Path
) -> None:
    """The first loss is the last one of the training before, all places are trained at once, and resuming keeps that."""
    first, losses = made(kind, target), list[float]()
    training_loop.train(first, written, training_loop.TrainingPlan(20, 60, rate=5e-3), tmp_path / "first")
    lesson = Reader(target.model, first.layers).read(written)
    head = made(kind, target)
    training_loop.begin(head, tmp_path / "first")
    with torch.no_grad():
        torch.manual_seed(0)
        before = float(first.loss(lesson, 3))
        torch.manual_seed(0)
        assert float(head.loss(lesson, 3)) == before
    assert head.places_at(0.0) == 3
    plan = training_loop.TrainingPlan(5, 60)
    training_loop.train(head, written, plan, tmp_path / "more", lambda step, loss: losses.append(loss))
    assert len(losses) == 5


@pytest.mark.wide
def test_continuations_are_kept(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are the target's own, come in the order of the prompts, and are decoded once; other prompts are refused."""
    monkeypatch.setattr("specframe_heads.training.continuations.PART", 3)
    pipe, counts = harness.pipeline(target.model, None), []
    found = texts(tmp_path, pipe, PROMPTS, 6, counts.append)
    assert counts == [3, 4]
    for text, prompt in zip(found, PROMPTS, strict=True):
        whole = reference_decode(target.model, list(prompt), 6)
        end = whole.index(zoo.EOS) + 1 if zoo.EOS in whole else 6
        assert text.ids == [*prompt, *whole[:end]]
        assert text.prompt == len(prompt)
    (tmp_path / "part-00001.safetensors").unlink()
    monkeypatch.setattr(
        pipe, "generate", lambda prompts, new: pytest.fail("decoded again") if len(prompts) > 1 else iter(again)
    )
    again = list(harness.pipeline(target.model, None).generate(PROMPTS[3:], 6))
    assert texts(tmp_path, pipe, PROMPTS, 6) == found
    with pytest.raises(OptionError, match="holds continuations of other prompts"):
        texts(tmp_path, pipe, PROMPTS[1:], 6)


@pytest.mark.wide
def test_frequent_tokens() -> None:
    """The tokens that were written most often are kept, prompts aside, in ascending order."""
    some = [ContinuationText([1, 1, 1, 5, 5, 3], 3), ContinuationText([1, 7, 7, 7, 3], 1)]
    kept = frequent(some, 2, 9)
    assert kept.tolist() == [3, 7]  # 5 was written as often as 3: the smaller id is kept
    assert frequent(some, 9, 9) is None


def command(*arguments: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CliRunner().invoke(cli, ["heads", "train", *map(str, arguments)])


@pytest.mark.quick
def test_the_command(tmp_path: Path) -> None:
    """A head is trained, written and measured in one call; given again it is there at once; other options are refused."""
    target = zoo.save_pair(tmp_path)[1]
    (tmp_path / "data.ids").write_text("\n".join(" ".join(map(str, one)) for one in PROMPTS * 2))
    options = ("medusa", "--target", target, "--data", tmp_path / "data.ids", "--out", tmp_path / "head", "--step-tokens", 64,
               "--places", 2, "--max-new-tokens", 8, "--vocabulary", 60, "--device", "cpu")  # fmt: skip
    done = command(*options, "--steps", 3)
    assert done.exit_code == 0, done.output
    assert "mean_acceptance_length: " in done.output
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert (config["num_heads"], config["truncated_vocab_size"]) == (2, 60)
    figures = json.loads((tmp_path / "head" / "figures.json").read_text())
    assert (figures["kind"], figures["steps"], len(figures["accepted_at_each_place"])) == ("medusa", 3, 2)
    assert f"mean_acceptance_length: {figures['mean_acceptance_length']:.3f}" in done.output
    weights = (tmp_path / "head" / "model.safetensors").read_bytes()
    assert command(*options, "--steps", 3).stdout == done.stdout  # without the bars of loading
    assert (tmp_path / "head" / "model.safetensors").read_bytes() == weights
    refused = command(*options, "--steps", 4)
    assert refused.exit_code != 0
    assert "holds a training with another steps" in refused.output
    assert "--layers: expected a kind that has it" in command(*options, "--layers", 2).output
    further = tuple(one for one in options if one not in ("--vocabulary", 60))
    assert command(*further, "--steps", 1, "--out", tmp_path / "all").exit_code == 0
    more = command(*further, "--steps", 2, "--out", tmp_path / "more", "--init", tmp_path / "all")
    assert more.exit_code == 0, more.output
    assert "expected none with --init" in command(*options, "--init", tmp_path / "head").output
    assert "expected a folder that" in command(*further, "--init", tmp_path / "data.ids").output
    wrong = command(*further, "--places", 3, "--steps", 2, "--out", tmp_path / "wrong", "--init", tmp_path / "all")
    assert "--init: " in wrong.output
    assert "of shape" in wrong.output
    (tmp_path / "all" / "training" / "checkpoint.pt").write_bytes(b"nothing")
    torn = command(*further, "--steps", 2, "--out", tmp_path / "torn", "--init", tmp_path / "all")
    assert "checkpoint.pt cannot be read" in torn.output
    (tmp_path / "one.ids").write_text("1 2 3")
    alone = command("eagle3", "--target", target, "--data", tmp_path / "one.ids", "--out", tmp_path / "other")
    assert "expected at least two prompts" in alone.output
    assert not (tmp_path / "other").exists()


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "message"),
    [("eagle9", "expected one of clover2, dflash, eagle3, medusa"), ("medusa", "--data: not-there cannot be read")],
)
def test_wrong_arguments(kind: str, message: str) -> None:
    """A kind that there is not and a missing file of prompts are refused in one sentence."""
    done = command(kind, "--target", "tiny", "--data", "not-there", "--out", "OUT")
    assert done.exit_code != 0
    assert message in f"{done.output}{done.exception}"
