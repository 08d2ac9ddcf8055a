"""The embedded pair and the heads for it, their files and figures, and the scripts that made them."""

from __future__ import annotations

import csv
import json
import platform
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from jinja2 import TemplateError
from specframe_testing import harness
from specframe_testing.constraint_fakes import Even, OneByOne
from specframe_tiny import FOLDER, HEADS, train, train_family
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from specframe import Pipeline
from specframe.models import pairs
from specframe.reference import reference_decode

FIGURES = json.loads((FOLDER / "figures.json").read_text())


@pytest.mark.wide
@pytest.mark.parametrize("part", ["target", "draft"])
def test_the_pair_loads_with_plain_transformers(part):
    """AutoModelForCausalLM reads both directories, in bfloat16, with the parameters the card names."""
    model = AutoModelForCausalLM.from_pretrained(FOLDER / part)
    assert isinstance(model, Qwen3ForCausalLM)
    assert model.dtype == torch.bfloat16
    assert model.num_parameters() == FIGURES[f"{part}_parameters"]


@pytest.mark.wide
def test_the_pair_is_small():
    """Both directories together stay under 14 MB."""
    assert sum(file.stat().st_size for file in FOLDER.glob("*/*")) < 14e6


@pytest.mark.wide
@pytest.mark.parametrize(
    "text", ["def f(x):\n    return x\n", "Grüße, 世界 🙂\t\r\n", "\x00\x7f", "a" * 300, "<|endoftext|> is no text"]
)
def test_every_string_can_be_encoded(text):
    """Decoding what was encoded gives the text back, whatever its characters."""
    for part in ("target", "draft"):
        tokenizer = AutoTokenizer.from_pretrained(FOLDER / part)
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
        assert max(ids) < 2048


def test_chats_are_comments_and_code():
    """The pair's chat template makes comments of messages and code of answers, and is the one that the script writes."""
    asked = {"role": "user", "content": "write a\nloop"}
    answer = {"role": "assistant", "content": "for i in x:\n    pass"}
    for part in ("target", "draft"):
        tokenizer = AutoTokenizer.from_pretrained(FOLDER / part)
        assert tokenizer.chat_template == train.CHAT_TEMPLATE
        text = tokenizer.apply_chat_template([asked, answer, asked], add_generation_prompt=True, tokenize=False)
        assert text == "# write a\n# loop\nfor i in x:\n    pass\n# write a\n# loop\n"
    with pytest.raises(TemplateError, match="expected messages whose content is a text"):
        tokenizer.apply_chat_template([{"role": "user", "content": [{"type": "image"}]}])


def encoded(names: Sequence[str]) -> torch.Tensor:
    """Return the tokens of modules of Python's library."""
    tokenizer, library = Tokenizer.from_file(str(FOLDER / "target" / "tokenizer.json")), sysconfig.get_path("stdlib")
    return train.encode(tokenizer, [Path(library, name).read_text(encoding="utf-8") for name in names])


def held_out(count: int, length: int, less: int = 7) -> list[list[int]]:
    """Return pieces of the modules that were not trained on, some shorter by up to four times ``less``."""
    stream = encoded(sorted(train.HELD_OUT))
    starts = torch.linspace(0, len(stream) - length - 1, count).long().tolist()
    return [stream[start : start + length - less * (number % 5)].tolist() for number, start in enumerate(starts)]


@pytest.mark.nightly
@pytest.mark.slow
def test_the_draft_agrees_with_the_target_on_held_out_modules():
    """At K = 4 six in ten draft tokens are accepted on modules that were not trained on; elsewhere nearly so."""
    pipe = Pipeline(batch_size=32, draft_length=4)
    results = list(pipe.generate(held_out(128, 96, less=0), max_new_tokens=64))
    assert sum(len(result.token_ids) for result in results) > 7000
    assert FIGURES["draft_acceptance_rate_k4"] >= 0.6
    same_library = FIGURES["corpus"].endswith(f" {platform.python_version()}")
    assert pipe.report.draft_acceptance_rate >= (0.6 if same_library else 0.5)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_draft_agrees_after_long_prompts():
    """After 768 tokens, too, at least two in five draft tokens are accepted; next to none were by training on short windows."""
    streams = [encoded([name]) for name in train.HELD_OUT]
    prompts = [stream[:768].tolist() for stream in streams if len(stream) > 1500]
    pipe = Pipeline(batch_size=8, draft_length=4)
    assert len(list(pipe.generate(prompts, max_new_tokens=32))) >= 8
    assert FIGURES["draft_acceptance_rate_k4_long"] >= 0.55
    assert pipe.report.draft_acceptance_rate >= 0.4


@pytest.mark.wide
def test_training_resumes_where_it_was_cut_off(tmp_path):
    """Training that stops after a checkpoint and starts again ends with the weights of training that was not stopped."""
    stream = torch.arange(400) % 32

    def trained(folder, cut_off=None):
        folder.mkdir(exist_ok=True)
        model = small()

        def loss_at(step):
            if step == cut_off:
                raise KeyboardInterrupt
            return train.next_token_loss(model, train.windows(stream, 2, 9, step))

        train.train("model", model, loss_at, 130, (1e-2, 1e-2), folder)
        return model.state_dict()

    whole = trained(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", cut_off=120)
    resumed = trained(tmp_path / "cut")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


THERE = [kind for kind in HEADS if (FOLDER / "heads" / kind).is_dir()]
CELLS = [
    *((kind, "", "ragged") for kind in THERE),
    ("eagle3", ",branch=3/2/1", "eqspec"),
    ("medusa", ",tree=chain", "exspec"),
]
"""Each head drafts what it drafts by default, a tree or a chain; the cells with options are slow."""
DRAFTERS = {"eagle3": "eagle"}
"""Drafters that are not called as their heads are."""
LEAST = 0.8
"""The part of the card's mean acceptance length that has to be reached: on other prompts, after another version's library."""


@pytest.fixture(scope="module")
def target() -> Any:
    """The embedded target."""
    return Pipeline("tiny", None, dtype="float32", device="cpu").target_model


def test_the_draft_model_is_still_the_default() -> None:
    """ "auto" takes the embedded draft model, whatever heads there are, and a head alone takes the embedded target."""
    assert pairs.paired_drafter("tiny") == "tiny-draft"
    assert pairs.choose("tiny", "auto")[1:] == ("model", "tiny-draft")
    assert pairs.choose("auto", "tiny-draft")[0] == "tiny"


@pytest.mark.wide
@pytest.mark.parametrize("kind", THERE)
def test_a_heads_files(kind: str) -> None:
    """A head has at most 3 MB, figures, and a configuration that names no folder of the machine that it was made on."""
    folder = FOLDER / "heads" / kind
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors", "figures.json"}
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 3_000_000
    assert json.loads((folder / "figures.json").read_text())["kind"] == kind
    text = (folder / "config.json").read_text()
    config = json.loads(text)
    if kind in ("eagle3", "dflash"):
        assert config["speculators_model_type"] == kind
        assert config["speculators_config"]["verifier"]["name_or_path"] == "tiny"
    assert "/" not in text
    assert pairs.choose("auto", f"tiny-{kind}")[:2] == ("tiny", f"{DRAFTERS.get(kind, kind)},checkpoint={folder}")


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "options", "align"), [pytest.param(*cell, marks=[pytest.mark.slow] * bool(cell[1])) for cell in CELLS]
)
def test_a_head_decodes_exactly(kind: str, options: str, align: str, target: Any) -> None:
    """Chains and trees of a trained head give the target's own tokens in ragged batches, and some of their tokens are accepted."""
    pipe = harness.pipeline(target, f"tiny-{kind}{options}", align=align, batch_size=3, draft_length=4)
    harness.check(pipe, harness.requests(held_out(6, 64), 24, {0}))
    assert pipe.report.mean_acceptance_length > 1.2


@pytest.mark.wide
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "clover2")) for kind in THERE])
def test_a_head_drafts_under_a_constraint(kind: str, target: Any) -> None:
    """A head drafts only what the constraint allows, and the tokens are the reference decoder's with the same constraint."""
    feeds = harness.Feeds()
    asked = [attrs.evolve(one, constraint=Even()) for one in harness.requests(held_out(4, 64), 16, {0})]
    pipe = harness.pipeline(target, f"tiny-{kind}", batch_size=3, draft_length=3, observers=[feeds])
    results = harness.decode(pipe, asked)
    for request, result in zip(asked, results, strict=True):
        own = OneByOne(Even(), request, target.config.vocab_size)
        assert result.token_ids == reference_decode(target, request.prompt_ids, 16, {0}, [own])
    drafted = [token for round in feeds.decoding for row in round.report.draft.tokens_BN.tolist() for token in row]
    assert drafted
    assert not any(token % 2 for token in drafted)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("kind", THERE)
def test_a_head_reaches_the_cards_figure(kind: str, target: Any) -> None:
    """As a chain a head's mean acceptance length on held-out modules is about that of its card."""
    figures = json.loads((FOLDER / "heads" / kind / "figures.json").read_text())
    chain = f"tiny-{kind}{',tree=chain' if kind == 'medusa' else ''}"
    pipe = harness.pipeline(target, chain, batch_size=16, draft_length=4)
    list(pipe.generate(held_out(16, 96), max_new_tokens=48))
    assert pipe.report.mean_acceptance_length > LEAST * figures["mean_acceptance_length"]


def small() -> Qwen3ForCausalLM:
    """Return an untrained model, always the same."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=32, tie_word_embeddings=True,
        )
    )  # fmt: skip


def lessons(count: int) -> list[torch.Tensor]:
    """Return lessons of 8 tokens, with two likely tokens each."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(32, (count, 8), generator=generator)
    likely = torch.randint(32, (count, 8, 2), generator=generator).short()
    return [ids, likely, torch.tensor([0.75, 0.25]).expand(count, 8, 2).half()]


def saved(stops: list[int], count: int = 64) -> dict[int, dict[str, torch.Tensor]]:
    """Return the weights of a model at each stop, trained on the first lessons of 64."""
    first = [part[:count] for part in lessons(64)]
    return {seen: draft.state_dict() for seen, draft in train_family.grown(small(), first, stops)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether weights are the same."""
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_draft_saved_on_the_way_is_that_of_a_shorter_run() -> None:
    """A run that ends at a volume gives the weights that a longer run has there; lessons after it are not looked at."""
    stops = [64, 128, 512]
    whole = saved(stops)
    assert [*whole] == stops
    for last in (1, 2):
        assert same(saved(stops[:last])[stops[last - 1]], whole[stops[last - 1]])
    assert same(saved([64], count=8)[64], whole[64])
    assert not same(whole[64], whole[128])
    assert not same(whole[128], whole[512])


@pytest.mark.wide
def test_a_new_draft_has_its_depth_and_the_targets_embeddings() -> None:
    """Each depth is as many layers; what is not in a layer is the same in all."""
    target = AutoModelForCausalLM.from_pretrained(train_family.FOLDER / "target", dtype=torch.float32)
    for layers in (1, 3):
        draft = train_family.new_draft(target, layers)
        assert len(draft.model.layers) == len(draft.config.layer_types) == draft.config.num_hidden_layers == layers
        assert torch.equal(draft.model.embed_tokens.weight, target.model.embed_tokens.weight)
    assert train_family.DRAFT.num_hidden_layers == 2


@pytest.mark.wide
@pytest.mark.parametrize("tokens", ["65535", "16384", "0"])
def test_volumes_that_are_no_power_of_two_are_refused(
    tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Another number of tokens is refused before anything is trained."""
    with pytest.raises(SystemExit):
        train_family.main(["--work", str(tmp_path), "--tokens", tokens])
    assert f"expected a power of two, at least {train_family.SMALLEST}, got {tokens}" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.slow
def test_the_script_writes_drafts_a_table_and_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each depth has a draft for each volume; a second call makes only the depth that is not there."""
    monkeypatch.setattr(train_family, "SMALLEST", 1024)
    monkeypatch.setattr(train_family, "volumes", lambda largest: [1024, 2048])
    train_family.main(["--work", str(tmp_path), "--tokens", "2048", "--depths", "1"])
    weights = tmp_path / "1-layers-2048-tokens" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    train_family.main(["--work", str(tmp_path), "--tokens", "2048", "--depths", "1", "2"])
    assert weights.stat().st_mtime_ns == before
    with (tmp_path / "drafts.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [(row["tokens"], row["layers"]) for row in rows] == [
        ("1024", "1"),
        ("2048", "1"),
        ("1024", "2"),
        ("2048", "2"),
    ]
    for row in rows:
        assert AutoModelForCausalLM.from_pretrained(row["drafter"]).config.num_hidden_layers == int(row["layers"])
    prompts = [json.loads(line)["prompt"] for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert len(prompts) == train_family.SNIPPETS[0]
    assert all(prompts)
