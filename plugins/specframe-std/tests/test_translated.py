"""Drafting by way of text: exact whatever the tokenizers, and right where both models say the same text."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from specframe_std.drafters.texts import Transcript, Translation, codecs
from specframe_testing import fakes, harness, zoo
from specframe_testing.conformance import DrafterSuite
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn.functional import one_hot
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import CausalLMOutputWithPast

from specframe import Pipeline
from specframe.errors import SpecframeWarning
from specframe.reference import reference_decode

TEXT = "the cat sat on the mat, and then the other cat ran to the märkt to see an éclair: 日本語 in the shop. "
EOS = "<|endoftext|>"
CHARACTERS = [chr(0x21 + place) for place in range(128)]


@functools.cache
def byte_level(size: int, *specials: str) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer with ``size`` tokens beside those of single bytes and the special ones."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = EOS, *specials
    trainer = trainers.BpeTrainer(
        vocab_size=256 + len(specials) + size,
        special_tokens=[*specials],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator([TEXT * 3], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS, pad_token=EOS)


def letters(characters: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token per character."""
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(characters)}, merges=[]))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def pair(target: PreTrainedModel, draft: Any, first: Any, second: Any, **options: Any) -> Pipeline:
    """Return a pipeline in which these two models have these two tokenizers."""
    pipe = harness.pipeline(target, draft, drafter="translated", **options)
    pipe.parts.tokenizer, pipe.parts.draft_tokenizer = first, second
    return pipe


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestTranslated(DrafterSuite):
    """The suite, on two tokenizers of single characters: the draft model's is another object, its tokens the same."""

    host_waits = 2  # text is made on the host of every draft
    """Waits per round on a device as strict as CUDA."""

    def make(self) -> str:
        return "translated"

    def pipeline(self, target: PreTrainedModel, draft: Any = None, **options: Any) -> Pipeline:
        pipe = super().pipeline(target, zoo.bad_draft() if draft is None else draft, **options)
        pipe.parts.tokenizer, pipe.parts.draft_tokenizer = letters(CHARACTERS), letters(CHARACTERS)
        return pipe

    @pytest.mark.wide
    @pytest.mark.parametrize("schedule", ["fixed", "continuous", "continuous,piece=3", "same-length,window=5"])
    @pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec", "rollback"])
    def test_a_copy_of_the_target_is_always_right(self, align: str, schedule: str) -> None:
        """Drafts of the target itself are all accepted, however rows are moved and left out: the cache is never wrong."""
        target = fakes.fake_target()
        asked = harness.requests(harness.random_prompts((6, 1, 9, 1, 13, 2, 7), 61, seed=5), [3, 17, 9, 12, 1, 6, 17])
        pipe = self.pipeline(target, fakes.fake_draft(target, slip_every=0), align=align, schedule=schedule)
        self.verify(pipe, asked)
        assert pipe.report.num_draft_tokens == pipe.report.num_accepted_draft_tokens > 0

    @pytest.mark.wide
    def test_prompts_are_read_in_the_targets_pieces(self) -> None:
        """While others decode, no more of a prompt is read at once than the target reads."""
        target, feeds = fakes.fake_target(), harness.Feeds()
        options = {"schedule": "continuous,piece=8", "batch_size": 2, "draft_length": 3, "observers": [feeds]}
        pipe = self.pipeline(target, fakes.fake_draft(target, slip_every=0), **options)
        self.verify(pipe, harness.requests(harness.random_prompts((4, 5, 40), 61), [30, 2, 5]))
        fed = [tokens for round in feeds.rounds for _, tokens in round.draft]
        assert max(fed) <= 8 + 1  # the last token of a piece is fed with the next, as the text may go on in it
        assert sum(tokens for tokens in fed if tokens > 4) >= 39
        assert pipe.report.num_draft_tokens == pipe.report.num_accepted_draft_tokens > 0


@functools.cache
def different_pair(name: str) -> tuple[Any, Any, Any, Any]:
    """Return a target and a draft model of the zoo, with byte-level tokenizers of different sizes."""
    first, second = byte_level(60, "<|user|>"), byte_level(20)
    target = zoo.build(name, vocab_size=len(first) + 3)
    return target, zoo.build("qwen3", seed=1, vocab_size=len(second)), first, second


def ragged_prompts(tokenizer: Any, seed: int = 0) -> list[list[int]]:
    """Return prompts of words, of broken characters, of special tokens and of one token, in ids."""
    chance = random.Random(seed)
    return [
        tokenizer(TEXT[:40]).input_ids,
        tokenizer("日本").input_ids[:-1],
        [0, *tokenizer("<|user|>the cat").input_ids, 0],
        [0],
        [chance.randrange(len(tokenizer)) for _ in range(17)],
    ]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("align", "batch_size", "draft_length"),
    [
        ("ragged", 1, 4),
        ("eqspec", 3, 4),
        ("ragged", 3, 1),
        *(
            pytest.param(*cell, marks=pytest.mark.slow)
            for cell in (("ragged", 3, 4), ("eqspec", 1, 4), ("eqspec", 1, 1), ("eqspec", 3, 1), ("ragged", 1, 1))
        ),
    ],
)
def test_exact(align: str, batch_size: int, draft_length: int) -> None:
    """Two models of different tokenizers decode to the reference decoder's tokens."""
    target, draft, first, second = different_pair("llama")
    options = {"align": align, "batch_size": batch_size, "draft_length": draft_length}
    asked = harness.requests(ragged_prompts(first), [9, 7, 11, 4, 8])
    harness.check(pair(target, draft, first, second, **options), asked)
    harness.check(pair(target, draft, first, second, **options, check=True), asked)


class Reciter(fakes.FakeModel):
    """Goes on with one text from where the tokens it attends to end, in tokens of its own byte-level tokenizer."""

    def learn(self, tokenizer: Any, text: str) -> Reciter:
        """Take the text to recite."""
        self.spelling = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.sizes = [0 if token == EOS else len(token) for token in self.spelling]
        self.score: str = "".join(self.spelling[i] for i in tokenizer(text).input_ids)
        place, self.canonical = 0, {}
        for i in tokenizer(text).input_ids:
            self.canonical[place] = i
            place += self.sizes[i]
        return self

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> Any:
        """Return logits for the last ``logits_to_keep`` tokens fed."""
        sizes = torch.tensor(self.sizes, dtype=self.anchor.dtype)[input_ids][:, None, :, None]
        if past_key_values is not None:
            sizes, _ = past_key_values.update(sizes, sizes.clone(), 0)
        visible_BTS = fakes._visible(attention_mask, input_ids.shape[1], sizes.shape[2], input_ids.device)
        places_BT = (visible_BTS * sizes[:, :, :, 0]).sum(-1).long()[:, -logits_to_keep:]
        following = torch.tensor([[self.following(place) for place in row] for row in places_BT.tolist()])
        logits = fakes.CERTAIN * one_hot(following, self.config.vocab_size).to(self.anchor.dtype)
        return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)

    def following(self, place: int) -> int:
        """Return the token after ``place`` letters: that of the text's own encoding or, off its beat, the longest that fits."""
        fits = (i for i, token in enumerate(self.spelling) if self.sizes[i] and self.score.startswith(token, place))
        return self.canonical.get(place) or max(fits, key=self.sizes.__getitem__, default=0)


def reciter(tokenizer: Any, text: str) -> Reciter:
    """Return a model that recites ``text``."""
    config = fakes.FakeConfig(len(tokenizer), max_position_embeddings=4096)
    return Reciter(config).eval().learn(tokenizer, text)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("sizes", "least"), [((80, 80), 1.0), ((10, 80), 1.0), ((0, 80), 1.0), ((80, 20), 0.5), ((80, 0), 0.2)]
)
def test_one_text_in_tokens_of_other_sizes(sizes: tuple[int, int], least: float) -> None:
    """Two models that say one text give the same, though one's tokens end inside the other's, or inside characters."""
    first, second = (byte_level(size) for size in sizes)
    text = TEXT * 8
    prompts = [first(TEXT).input_ids, first(TEXT[:20]).input_ids[:-1]]
    pipe = pair(reciter(first, text), reciter(second, text), first, second, draft_length=4)
    harness.check(pipe, harness.requests(prompts, 90))
    assert pipe.report.draft_acceptance_rate >= least


def test_a_draft_by_way_of_text_is_told(tmp_path: Path) -> None:
    """One line where the pipeline is made says so, and one where sequences pass the draft model's own context, as without text."""
    first, second = byte_level(5), byte_level(5, "<|pad|>")
    target, draft = zoo.build("qwen3", vocab_size=len(first)), zoo.build("qwen3", vocab_size=len(second))
    draft.config.max_position_embeddings = 16
    draft.save_pretrained(tmp_path)
    second.save_pretrained(tmp_path)
    with pytest.warns(SpecframeWarning, match="another tokenizer than the target: it drafts by way of text") as told:
        pipe = Pipeline(target, str(tmp_path), tokenizer=first, device="cpu")
    assert [Path(warning.filename).name for warning in told] == [Path(__file__).name]
    said = "the draft model's context of 16 tokens is shorter than sequences of up to"
    with pytest.warns(SpecframeWarning, match=said):
        (result,) = pipe.generate("the cat", 30)
    ids = reference_decode(target, pipe.encode("the cat"), 30, {first.eos_token_id})
    assert result.token_ids == ids[: len(result.token_ids)]


def spaced() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a begin token that puts a space before a text and takes it away again."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    units = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=["<unk>", "<s>", "</s>", *units], show_progress=False)
    backend.train_from_iterator(["the cat sat on the mat, and then the other cat ran to the shop. "] * 3, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.mark.wide
@pytest.mark.parametrize("step", [1, 3, 50])
@pytest.mark.parametrize("make", [lambda: byte_level(40), lambda: byte_level(0), spaced])
def test_text_grows_as_tokens_do(make: Any, step: int) -> None:
    """Read in chunks of any size, tokens become the text of them all, and that the tokens of the other vocabulary."""
    first, second = make(), spaced()
    target, draft = codecs(first, second)
    ids = first(TEXT * 2).input_ids
    transcript, translation = Transcript(target), Translation(draft)
    for start in range(0, len(ids), step):
        before = transcript.text
        if added := transcript.read(ids[start : start + step]):
            translation.grow(before, added)
    assert transcript.text == TEXT * 2
    assert transcript.count == len(ids)
    assert translation.ids == second(TEXT * 2).input_ids


@pytest.mark.wide
def test_what_follows_a_row() -> None:
    """Text becomes tokens that follow the row's own; where it would change the row's last token, by itself; or none."""
    first = byte_level(80)
    codec, _ = codecs(first, byte_level(0))
    row = Transcript(codec)
    row.read(first("the o").input_ids)
    assert first.decode(row.tokens("ther cat")) == "ther cat"
    assert first.decode(row.tokens(" cat ran")) == " cat ran"
    letter = first("日").input_ids
    assert len(letter) > 1
    row.read(letter[:1])
    assert row.held == letter[:1]
    assert codec.decode(row.held + row.tokens("日本")) == "日本"
    assert row.tokens("é") == []
