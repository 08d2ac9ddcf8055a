"""The embedded pair: its files, its tokenizer, its figures, and the script that made it."""

import json
import platform
import sysconfig
from pathlib import Path

import pytest
import torch
from jinja2 import TemplateError
from specframe_tiny import FOLDER, train
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from specframe import Pipeline

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


@pytest.mark.nightly
@pytest.mark.slow
def test_the_draft_agrees_with_the_target_on_held_out_modules():
    """At K = 4 at least six in ten draft tokens are accepted on modules that were not trained on, as the card says.

    Another version of Python has another library, on which the figure is a little different.
    """
    tokenizer = Tokenizer.from_file(str(FOLDER / "target" / "tokenizer.json"))
    library = Path(sysconfig.get_path("stdlib"))
    stream = train.encode(tokenizer, [(library / name).read_text(encoding="utf-8") for name in sorted(train.HELD_OUT)])
    starts = torch.linspace(0, len(stream) - 97, 128).long().tolist()
    pipe = Pipeline(batch_size=32, draft_length=4)
    results = list(pipe.generate([stream[start : start + 96].tolist() for start in starts], max_new_tokens=64))
    assert sum(len(result.token_ids) for result in results) > 7000
    assert FIGURES["draft_acceptance_rate_k4"] >= 0.6
    same_library = FIGURES["corpus"].endswith(f" {platform.python_version()}")
    assert pipe.report.draft_acceptance_rate >= (0.6 if same_library else 0.5)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_draft_agrees_after_long_prompts():
    """After 768 tokens, too, at least two in five draft tokens are accepted; next to none were by training on short windows."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "target" / "tokenizer.json"))
    library = Path(sysconfig.get_path("stdlib"))
    streams = [train.encode(tokenizer, [(library / name).read_text(encoding="utf-8")]) for name in train.HELD_OUT]
    prompts = [stream[:768].tolist() for stream in streams if len(stream) > 1500]
    pipe = Pipeline(batch_size=8, draft_length=4)
    assert len(list(pipe.generate(prompts, max_new_tokens=32))) >= 8
    assert FIGURES["draft_acceptance_rate_k4_long"] >= 0.55
    assert pipe.report.draft_acceptance_rate >= 0.4


@pytest.mark.wide
def test_training_resumes_where_it_was_cut_off(tmp_path):
    """Training that stops after a checkpoint and starts again ends with the weights of training that was not stopped."""
    config = Qwen3Config(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    stream = torch.arange(400) % 32

    def trained(folder, cut_off=None):
        folder.mkdir(exist_ok=True)
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)

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
