"""A head that learns while it drafts: its new weights are used at once, tokens stay the target's, and the target stays as it is."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.following import Follower, batches
from specframe_heads.formats.recognised import format_of
from specframe_heads.head import HeadDrafter
from specframe_heads.target import Target
from specframe_heads.training.continuations import ContinuationText
from specframe_heads.training.eagle3 import Eagle3Learner
from specframe_heads.training.head_kinds import learner_class
from specframe_heads.training.training_batches import Reader
from specframe_std.executors.workers.messages import packed_recipe
from specframe_std.executors.workers.processes import WorkerProcesses
from specframe_testing import harness, zoo
from specframe_testing.heads import checkpoints, stepwise

import specframe
from specframe import Pipeline
from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.round import Batch
from specframe.errors import OptionError
from specframe.reference import reference_decode

COMMON = harness.random_prompts([9], zoo.VOCABULARY, seed=4)[0]
PROMPTS = [[*COMMON, 5, 6], [*COMMON, 7], harness.random_prompts([4], zoo.VOCABULARY)[0]]
NEW = 14


def policy(**options: Any) -> Any:
    """Return a target of its own, whose weights need gradients."""
    return copy.deepcopy(zoo.build("qwen3", num_hidden_layers=4, **options)).requires_grad_(True)


def drifted(model: Any, step: int) -> None:
    """Change a target's weights in their place."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for weight in model.model.layers.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.03)  # enough for other tokens


def head_of(kind: str, model: Any, folder: Path) -> str:
    """Write a head of a kind that knows nothing, as the command does, and return it as a drafter of chains."""
    torch.manual_seed(0)
    learner_class(kind)(target=Target(model), places=3, **({"layers": 1} if kind == "dflash" else {})).save(folder)
    return f"{folder}{',tree=chain' if kind == 'medusa' else ''}"


def rollouts(pipe: Pipeline, **asked: Any) -> list[list[int]]:
    """Return what a pipeline makes of the prompts, prompts included."""
    results = list(pipe.generate(PROMPTS, NEW, **asked))
    return [[*prompt, *result.token_ids] for prompt, result in zip(PROMPTS, results, strict=True)]


def truth(model: Any) -> list[list[int]]:
    """Return what the reference decoder makes of the prompts with the weights as they are."""
    found = []
    for prompt in PROMPTS:
        ids = reference_decode(model, list(prompt), NEW)
        found.append([*prompt, *(ids[: ids.index(zoo.EOS) + 1] if zoo.EOS in ids else ids)])
    return found


Drafts = dict[tuple[int, ...], list[int]]


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> Drafts:
    """The draft after each text from now on."""
    made, propose = Drafts(), HeadDrafter.propose

    def noted(self: HeadDrafter, batch: Batch, budget: Budget) -> Draft:
        draft = propose(self, batch, budget)
        for sequence, ids in zip(batch.sequences, draft.tokens_BN.tolist(), strict=True):
            if ids:
                made[*sequence.request.prompt_ids, *sequence.token_ids] = ids
        return draft

    monkeypatch.setattr(HeadDrafter, "propose", noted)
    return made


@pytest.mark.wide(but=["medusa-options1"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("eagle3", {"kv": "paged,block=4,share=on", "graphs": "on"}),
        ("medusa", {}),
        ("eagle3", {"layers": "traced"}),
        ("clover2", {}),
    ],
)
def test_a_live_pipeline_drafts_with_what_was_learnt(
    kind: str, options: dict[str, Any], tmp_path: Path, drafts: Drafts
) -> None:
    """While target and head change, tokens are the reference decoder's, and drafts those of a pipeline that kept nothing."""
    model = policy()
    follower, gained = Follower(head_of(kind, model, tmp_path), model, rate=2e-2, places=3), 0.0
    live = harness.pipeline(model, follower.drafter, draft_length=3, **options)
    for step in range(2):
        drifted(model, step)
        written = rollouts(live)
        assert written == truth(model)
        gained -= live.report.mean_acceptance_length
        for _ in range(6):
            follower.learn(written)
        drafts.clear()
        assert rollouts(live) == written
        gained += live.report.mean_acceptance_length
        kept = dict(drafts)
        drafts.clear()
        fresh = copy.copy(follower.drafter)
        assert rollouts(harness.pipeline(model, fresh, draft_length=3)) == written
        assert kept == drafts
    assert gained > 0.2, "what it has learnt is accepted"


@pytest.mark.wide
def test_sampled_tokens_do_not_depend_on_the_head(tmp_path: Path) -> None:
    """Under gumbel, inside ``Pipeline`` and inside ``generate``, tokens are those without drafts, before and after learning."""
    model = policy()
    follower = Follower(head_of("eagle3", model, tmp_path), model, rate=5e-3, places=3)
    live = harness.pipeline(model, follower.drafter, draft_length=3, accept="gumbel")
    plain, inside = harness.pipeline(model, None, accept="gumbel"), specframe.assisted(follower.drafter, 3)
    ids = torch.tensor([PROMPTS[2]])
    for step in range(2):
        drifted(model, step)
        written = rollouts(live, temperature=1.0)
        assert written == rollouts(plain, temperature=1.0)
        found = model.generate(ids, max_new_tokens=NEW, do_sample=False, custom_generate=inside)
        assert found[0].tolist() == truth(model)[2]
        follower.learn(written)


def test_the_target_is_left_as_it_is(tmp_path: Path) -> None:
    """Neither weights nor gradients nor the mode of the target change, though heads borrow parts of it; their copies do."""
    model = policy().train()
    folder = checkpoints.eagle3_authors(tmp_path / "authors", model, pickled=False)
    bare = Checkpoint.open(str(folder))
    tensors = bare.load(lambda name: name != "lm_head.weight")
    borrowing = checkpoints.save(tmp_path / "borrowing", bare.config, tensors)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for head in (
        head_of("dflash", model, tmp_path / "dflash"),
        head_of("clover2", model, tmp_path / "clover2"),
        str(borrowing),
    ):
        model.zero_grad()
        model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
        follower = Follower(head, model, rate=5e-3)
        losses = [follower.learn(truth(model), [len(one) for one in PROMPTS]) for _ in range(3)]
        assert losses[-1] < losses[0]
        assert model.lm_head.weight.grad.eq(1).all()
        assert all(one.grad is None for one in model.parameters() if one is not model.lm_head.weight)
    embedding = follower.drafter.made_for(model)[0].backbone.embed_tokens.weight
    assert embedding.data_ptr() == model.get_input_embeddings().weight.data_ptr(), "it is the target's still"
    assert model.training
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.wide(but=["qwen3-more1"])
@pytest.mark.parametrize(
    "more", [{}, {"norm_before_residual": True, "norm_output": True, "norm_before_fc": True, "fc_norm": True}]
)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@torch.no_grad()
def test_published_eagle_heads_are_trained_on_what_they_draft(
    family: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Of heads with sizes, layers, tokens and norms of their own the logits that are trained are those that are drafted."""
    model = zoo.build("qwen3", num_hidden_layers=4)
    given = checkpoints.eagle3(tmp_path / "given", model, drafted=70, layers=2, **more)
    if family == "qwen3":
        opened = Checkpoint.open(str(given))
        tensors = opened.load()
        size = opened.config["transformer_layer_config"]["head_dim"]
        tensors |= {
            f"layers.{place}.self_attn.{name}_norm.weight": torch.linspace(0.5, 2, size)
            for place in (0, 1)
            for name in "qk"
        }
        layers = opened.config["transformer_layer_config"] | {"model_type": "qwen3"}
        given = checkpoints.save(tmp_path / "qwen", opened.config | {"transformer_layer_config": layers}, tensors)
    follower = Follower(str(given), model)
    follower.save(tmp_path / "saved")
    checkpoint = Checkpoint.open(str(tmp_path / "saved"))
    head = format_of(checkpoint).made(checkpoint, Target(model))
    taught = Follower(str(tmp_path / "saved"), model)._learner
    assert isinstance(taught, Eagle3Learner)
    (text,) = [ContinuationText(truth(model)[0], 0)]
    lesson = Reader(model, taught.layers).read([text])
    fused_1TD = head.fuse(torch.cat([lesson.hidden[one] for one in taught.layers], dim=-1))
    features_1TD, fed_1T = fused_1TD[:, :4], lesson.ids_BT[:, 1:5]
    for place, logits_BTV in enumerate(taught.predicted(lesson, 3)):
        states_1TD = head.backbone(fed_1T, features=features_1TD).logits
        torch.testing.assert_close(head.logits(states_1TD[:, -1])[0], logits_BTV[0, 3], atol=1e-4, rtol=1e-4)
        features_1TD = torch.cat([features_1TD, head.fed_back(states_1TD[:, -1:])], dim=1)
        fed_1T = lesson.ids_BT[:, 1 : 6 + place]
    assert taught.layers == tuple(Follower(str(given), model)._learner.layers)


@pytest.mark.wide
def test_medusa_heads_of_the_authors_are_followed(tmp_path: Path) -> None:
    """Heads with biases learn, and are written so that they are read again."""
    model = policy()
    given = stepwise.overfitted(tmp_path / "given", "medusa", model, [[1, 2]], tokens=4, steps=1)
    follower = Follower(f"{given},tree=chain", model, rate=5e-3)
    losses = [follower.learn(truth(model)) for _ in range(4)]
    assert losses[-1] < losses[0]
    follower.save(tmp_path / "saved")
    assert rollouts(harness.pipeline(model, f"{tmp_path / 'saved'},tree=chain", draft_length=3)) == truth(model)


def test_learning_goes_on_where_it_was(tmp_path: Path) -> None:
    """Momentum and updates last from call to call, in either mode; one without finite gradients is left out."""
    model = policy(attention_dropout=0.5)
    head, texts = head_of("medusa", model, tmp_path), truth(model)
    one, two = Follower(head, model, tokens=1), Follower(head, model, tokens=1)
    one.learn(sorted(texts, key=len, reverse=True)[:2])
    model.train()
    for text in sorted(texts, key=len, reverse=True)[:2]:
        two.learn([text])
    model.eval()
    assert one.updates == two.updates == 2
    weights = [[*follower.drafter.made_for(model)[0].steps.parameters()] for follower in (one, two)]
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))
    before = [weight.clone() for weight in weights[0]]
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    assert not torch.tensor(one.learn(texts)).isfinite()
    assert one.updates == 2
    assert all(torch.equal(*pair) for pair in zip(before, weights[0], strict=True))


@pytest.mark.wide
def test_half_precision(tmp_path: Path) -> None:
    """The head of a target in bfloat16 learns in float32, by updates that bfloat16 would lose, under no_grad as well."""
    model = policy().to(torch.bfloat16)
    follower = Follower(head_of("eagle3", model, tmp_path), model, rate=1e-4)
    texts = [[*prompt, 3, 4, 5] for prompt in PROMPTS]
    with torch.no_grad():
        losses = [follower.learn(texts) for _ in range(12)]
    assert losses[-1] < losses[0]
    weights = [weight.dtype for weight in follower.drafter.made_for(model)[0].parameters()]
    assert {*weights} == {torch.bfloat16}


def test_workers_are_sent_what_was_learnt(tmp_path: Path) -> None:
    """Worker processes get a head anew after it has learnt, and only then; what they get drafts with the new weights."""
    model = policy()
    follower = Follower(head_of("medusa", model, tmp_path), model, rate=2e-2)
    pipe, workers, sent = harness.pipeline(model, follower.drafter, draft_length=3), WorkerProcesses(0), []
    written = truth(model)
    for step in range(3):
        workers.begin(pipe.recipe, pipe.parts)
        sent.append(workers._recipes)
        if step == 1:
            for _ in range(6):
                follower.learn(written)
    assert sent == [1, 1, 2]
    recipe = pickle.loads(packed_recipe(pipe.recipe))
    assert rollouts(pipe) == written
    copied = harness.pipeline(recipe.target, recipe.drafter, draft_length=3)
    assert rollouts(copied) == written
    assert copied.report.mean_acceptance_length == pipe.report.mean_acceptance_length > 1.2


def test_texts_of_an_update() -> None:
    """Texts are taken once each, the longest ones first, with as many places as an update may have."""
    texts = [ContinuationText([1] * length, 0) for length in (3, 9, 2, 4, 20)]
    assert [[len(one.ids) for one in batch] for batch in batches(texts, 18)] == [[20], [4, 9], [2, 3]]


def test_what_cannot_be_learnt_is_refused(tmp_path: Path) -> None:
    """Drafters without a head, heads of other kinds and texts of other tokens end in one sentence."""
    model = policy()
    told = r"^drafter: expected a head of a kind that can be trained, eagle, .*, got 'suffix'"
    with pytest.raises(OptionError, match=told):
        Follower("suffix", model)
    with pytest.raises(OptionError, match=r"has a shape that `specframe heads train` does not train"):
        Follower(str(checkpoints.eagle1(tmp_path / "eagle1", model)), model)
    medusa = head_of("medusa", model, tmp_path / "medusa")
    with pytest.raises(OptionError, match=r"has a shape that `specframe heads train` does not train"):
        Follower(f"{medusa},shift=-1", model)
    follower = Follower(medusa, model)
    with pytest.raises(OptionError, match=r"^token_ids: expected ids from 0 to 96, got others in text 1"):
        follower.learn([[1, 2], [1, 97]])
    with pytest.raises(OptionError, match=r"^token_ids: expected texts of at least two tokens, got none"):
        follower.learn([[1]])
    with pytest.raises(OptionError, match=r"^prompts: expected a number for each of 1 texts, got 2"):
        follower.learn([[1, 2]], [1, 1])
