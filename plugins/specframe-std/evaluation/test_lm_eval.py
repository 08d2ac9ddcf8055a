"""lm-eval's models ``hf-specframe`` and ``hf``: ``make test-lm-eval``, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from specframe_std.lm_eval import SpecframeLM, main
from specframe_tiny import FOLDER
from transformers import AutoTokenizer, Qwen3ForCausalLM, T5Config, T5ForConditionalGeneration

from specframe.errors import SpecframeError, SpecframeWarning

TARGET, DRAFT = str(FOLDER / "target"), str(FOLDER / "draft")
CONTEXTS = [
    "import os\n",
    "def read_lines(path):\n",
    "class Stack:\n",
    "def f(x):\n    return",
    "import sys\nimport",
    "x = [1",
]
USUAL = {"device": "cpu", "dtype": "float32", "batch_size": 3}
TASK = """
task: code
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/code.jsonl}}
output_type: generate_until
test_split: test
doc_to_text: "{{text}}"
doc_to_target: "{{target}}"
generation_kwargs: {until: ["\\n\\n", "return"], max_gen_toks: 16}
metric_list: [{metric: exact_match}]
"""


def answers(lm: HFLM, until: Any, new: int = 20, contexts: list[str] = CONTEXTS, **asked: Any) -> list[str]:
    """Return the model's answers to the contexts."""
    kwargs = {"until": until, "max_gen_toks": new, **asked}
    torch.manual_seed(0)
    return lm.generate_until([Instance("generate_until", {}, (one, kwargs), 0) for one in contexts], disable_tqdm=True)


def forwards(lm: HFLM, until: Any, **asked: Any) -> int:
    """Return the number of the model's forwards for the answers to the contexts."""
    calls: list[int] = []
    hook = lm.model.register_forward_pre_hook(lambda *_: calls.append(1))
    answers(lm, until, **asked)
    hook.remove()
    return len(calls)


@pytest.fixture(scope="module")
def pair() -> tuple[HFLM, SpecframeLM]:
    """The model of lm-eval, and the one with drafts."""
    return HFLM(TARGET, **USUAL), SpecframeLM(TARGET, drafter=DRAFT, **USUAL)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task named "code"."""
    folder = tmp_path_factory.mktemp("task")
    lines = [json.dumps({"text": one, "target": "\n#"}) for one in CONTEXTS]
    (folder / "code.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "code.yaml").write_text(TASK.replace("FOLDER", str(folder)), encoding="utf-8")
    return folder


OWN = [" sys", ", 1", "\n#", ".f"]
"""Stop strings of which each context's continuation has another."""


@pytest.mark.parametrize(
    ("batch", "until"),
    [
        (1, ["\n\n", "return"]),
        (1, ["rt sys\n", "port"]),
        (3, ["\n\n", "return"]),
        (3, "import"),
        (3, []),
        (3, [""]),
        (3, OWN),
        (3, ["rt sys\n", "port"]),
        (3, ["(c) 2002-2", ") "]),
    ],
    ids=["one", "one-running-on", "usual", "text", "none", "empty", "each-its-own", "running-on", "one-in-another"],
)
def test_answers_are_those_of_hf(pair: tuple[HFLM, SpecframeLM], batch: int, until: Any) -> None:
    """Whatever the stop strings and the batch size, each answer is the same to the byte."""
    for lm in pair:
        lm.batch_size_per_gpu = batch
    assert answers(pair[1], until) == answers(pair[0], until)


@pytest.mark.parametrize("until", [["#"], ["#\n"], ["\n\n", "#"]], ids=["it", "a-part", "others-too"])
def test_stop_strings_of_special_tokens(tmp_path: Path, until: list[str]) -> None:
    """Where a special token is part of a stop string, which the texts lack, the answers are still those of ``hf``."""
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    tokenizer.add_special_tokens({"additional_special_tokens": ["#"]})
    tokenizer.save_pretrained(tmp_path)
    plain, drafted = (made(TARGET, tokenizer=str(tmp_path), **USUAL) for made in (HFLM, with_drafts))
    assert answers(drafted, until, contexts=CONTEXTS[:3]) == answers(plain, until, contexts=CONTEXTS[:3])


def with_drafts(*given: Any, **options: Any) -> SpecframeLM:
    """Return a model that the embedded draft model drafts for."""
    return SpecframeLM(*given, drafter=DRAFT, **options)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"batch_size": "auto", "max_batch_size": 4, "max_length": 64}, {}),
        ({"max_length": 32, "truncation": True}, {"new": 24}),
        ({"think_end_token": "import"}, {"until": [" sys"]}),
        ({"think_end_token": "694"}, {"until": [" sys"]}),
        ({}, {"do_sample": False, "temperature": 0.7, "repetition_penalty": 1.3}),
        ({}, {"max_length": 30}),
        ({}, {"until": ["\n"], "min_new_tokens": 5}),
    ],
    ids=["auto", "truncated", "think-text", "think-id", "penalty", "max-length", "least"],
)
def test_arguments_of_hf(options: dict[str, Any], asked: dict[str, Any]) -> None:
    """Arguments of the model and of a task mean what they mean to ``hf``."""
    plain, drafted = (made(TARGET, **{**USUAL, **options}) for made in (HFLM, with_drafts))
    asked = {"until": ["\n\n", "return"], **asked}
    assert answers(drafted, **asked) == answers(plain, **asked)


def test_an_adapter_is_evaluated(tmp_path: Path) -> None:
    """The answers with an adapter, ``peft=``, are those of ``hf``, and not those without."""
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    peft.get_peft_model(Qwen3ForCausalLM.from_pretrained(TARGET), config).save_pretrained(tmp_path)
    plain, drafted, bare = (
        made(TARGET, **USUAL, **options)
        for made, options in ((HFLM, {"peft": str(tmp_path)}), (with_drafts, {"peft": str(tmp_path)}), (HFLM, {}))
    )
    assert answers(drafted, ["\n\n"]) == answers(plain, ["\n\n"]) != answers(bare, ["\n\n"])


def test_tokens_are_drafted_and_rows_end_on_their_own(pair: tuple[HFLM, SpecframeLM]) -> None:
    """Drafts save forwards in a batch; stop strings of which each row has another do so much more."""
    plain, drafted = (forwards(lm, ["\n\n", "return"]) for lm in pair)
    assert drafted < 0.7 * plain
    assert forwards(pair[1], OWN) < 0.7 * drafted
    assert forwards(pair[0], OWN) == plain


def test_sampled_answers_follow_the_seed(pair: tuple[HFLM, SpecframeLM]) -> None:
    """With a temperature the same seed gives the same answers again, which are not the greedy ones."""
    warm = {"do_sample": True, "temperature": 1.0}
    first, again, greedy = (answers(pair[1], ["\n\n"], **asked) for asked in (warm, warm, {}))
    assert first == again != greedy


def test_likelihoods_are_those_of_hf(pair: tuple[HFLM, SpecframeLM]) -> None:
    """Log-likelihoods of continuations and of whole texts are the same numbers."""
    ends = [Instance("loglikelihood", {}, (one, " os\n"), 0) for one in CONTEXTS]
    whole = [Instance("loglikelihood_rolling", {}, (one,), 0) for one in CONTEXTS]
    plain, drafted = (
        (lm.loglikelihood(ends, disable_tqdm=True), lm.loglikelihood_rolling(whole, disable_tqdm=True)) for lm in pair
    )
    assert drafted == plain


def test_chat_templates_are_applied(task: Path) -> None:
    """``apply_chat_template`` gives the same answers as with ``hf``."""
    texts = []
    for made in (HFLM, with_drafts):
        lm = made(TARGET, **USUAL)
        lm.tokenizer.chat_template = "{% for one in messages %}{{ one.content }}{% endfor %}"
        found = simple_evaluate(
            lm,
            tasks=["code"],
            task_manager=TaskManager(include_path=str(task), include_defaults=False),
            apply_chat_template=True,
        )
        texts.append([one["resps"] for one in found["samples"]["code"]])
    assert texts[0] == texts[1]
    assert len(texts[0]) == len(CONTEXTS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "drafter: hf-specframe expected a draft model or a drafter among model_args, got none"),
        ({"drafter": "prompt-lookups"}, "did you mean 'prompt-lookup'"),
        ({"drafter": DRAFT, "align": "raged"}, "did you mean 'ragged'"),
    ],
    ids=["none", "misspelt", "alignment"],
)
def test_wrong_arguments_are_refused_before_the_model_is_loaded(options: dict[str, Any], words: str) -> None:
    """A wrong drafter or strategy is one sentence, which comes before the weights."""
    with pytest.raises(SpecframeError, match=words):
        SpecframeLM("nowhere", **options)


def test_what_cannot_be_drafted_is_refused(pair: tuple[HFLM, SpecframeLM], tmp_path: Path) -> None:
    """Encoder-decoder models are refused by name; under beams and autocast answers are those of ``hf``, and a warning says why."""
    small = T5Config(vocab_size=2048, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=1)
    T5ForConditionalGeneration(small).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(TARGET).save_pretrained(tmp_path)
    with pytest.raises(SpecframeError, match="expected a decoder-only model, got the backend 'seq2seq'"):
        with_drafts(str(tmp_path), **USUAL)
    with pytest.warns(SpecframeWarning, match=r"num_beams=2"):
        assert answers(pair[1], ["\n"], num_beams=2) == answers(pair[0], ["\n"], num_beams=2)
    with pytest.warns(SpecframeWarning, match="torch.autocast in another precision"):
        cast = answers(with_drafts(TARGET, mixed_precision_dtype="bfloat16", **USUAL), [])
    assert cast == answers(HFLM(TARGET, mixed_precision_dtype="bfloat16", **USUAL), [])


def test_the_command_is_lm_evals_own(
    task: Path, tmp_path: Path, pair: tuple[HFLM, SpecframeLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command logs the answers of ``hf``; a drafter with options goes in quotes; an error is a sentence."""
    given = [f"pretrained={TARGET}", "dtype=float32", "drafter='prompt-lookup,ngram=2'", "draft_length=4"]
    words = ["lm_eval", "--model", "hf-specframe", "--model_args", *given, "--device", "cpu", "--batch_size", "3"]
    words += ["--tasks", "code", "--include_path", str(task), "--output_path", str(tmp_path), "--log_samples"]
    run = [sys.executable, "-m", "specframe_std.lm_eval", *words[1:]]
    ended = subprocess.run(run, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "exact_match" in ended.stdout
    (path,) = tmp_path.rglob("samples_code_*.jsonl")
    logged = [json.loads(line)["resps"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert [text for ((text,),) in logged] == answers(pair[0], ["\n\n", "return"], 16)
    monkeypatch.setattr("specframe_std.lm_eval.cli_evaluate", lambda: SpecframeLM("nowhere", drafter="prompt-lookups"))
    with pytest.raises(SystemExit, match=r"^Error: .*did you mean 'prompt-lookup'"):
        main()
