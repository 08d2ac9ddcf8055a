"""Trainers of TRL that decode their rollouts with drafts: ``make test-trl``, in an environment of its own."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from datasets import Dataset
from specframe_heads.following import Follower
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

import specframe
from specframe.models.loading import load_model, load_tokenizer

transformers.logging.set_verbosity_error()

PROMPTS = ["import os\n", "def read_lines(path):\n", "class Stack:\n", "for index in range("]
TRAINERS = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}
DRAFT = load_model("tiny-draft", "draft", torch.device("cpu"), torch.float32)


class Rewards:
    """Rewards rows by a function of their tokens and their number, and notes each step's completions and weights."""

    __name__ = "rewards"

    def __init__(self, of: Callable[[list[int], int], float]) -> None:
        self.of, self.completions, self.given, self.sums = of, [], [], []
        self.model: Any = None

    def __call__(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        """Return the rewards of a step."""
        self.completions.append([list(row) for row in completion_ids])
        self.given.append([self.of(row, number) for number, row in enumerate(completion_ids)])
        self.sums.append(float(sum(weight.detach().double().sum() for weight in self.model.parameters())))
        return self.given[-1]


def trained(
    folder: Path, kind: str, of: Callable[[list[int], int], float], drafts: dict[str, Any] | None, **settings: Any
) -> Rewards:
    """Train the embedded target, with the options of ``accelerate`` or without the line, and return what was noted."""
    torch.manual_seed(0)
    trainer_class, config_class = TRAINERS[kind]
    adapter, callback = settings.pop("adapter", None), settings.pop("callback", None)
    tokenizer, seen = load_tokenizer("tiny"), Rewards(of)
    config = config_class(
        str(folder),
        **{
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 12,
            "max_steps": 10,
            "learning_rate": 1e-3,
            "seed": 0,
            "use_cpu": True,
            "bf16": False,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            **settings,
        },
    )
    data = Dataset.from_dict({"prompt": PROMPTS * 4})
    model = load_model("tiny", "target", torch.device("cpu"), torch.float32)
    trainer = trainer_class(model, seen, config, data, processing_class=tokenizer, peft_config=adapter)
    seen.model = trainer.model
    trainer.add_callback(callback) if callback else None
    if drafts and callable(drafts.get("drafter")) and not isinstance(drafts["drafter"], torch.nn.Module):
        drafts = {**drafts, "drafter": drafts["drafter"](trainer.model, seen)}
    torch.manual_seed(1)  # a drafter that is made may have drawn numbers
    if drafts is None:
        trainer.train()
        return seen
    with specframe.accelerate(trainer.model, **{"drafter": DRAFT, "draft_length": 3, **drafts}) as handle:
        trainer.train()
        if drafts.get("drafter", DRAFT) is not None:
            assert handle.report is not None
            assert handle.report.num_draft_tokens
    return seen


GREEDY = {"generation_kwargs": {"do_sample": False}}


@pytest.mark.parametrize("kind", TRAINERS)
@pytest.mark.parametrize("adapter", [None, "lora"])
def test_greedy_rollouts_are_the_same(kind: str, adapter: str | None, tmp_path: Path) -> None:
    """Over ten steps, whose weights and completions change, completions are those without the line, token for token."""
    made = (
        peft.LoraConfig(target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM", r=8) if adapter else None
    )
    rate = {"learning_rate": 3e-2} if adapter else {}
    runs = [
        trained(tmp_path, kind, lambda _, number: float(number % 4), drafts, adapter=made, **GREEDY, **rate)
        for drafts in (None, {"kv": "paged,block=2,share=on"})
    ]
    assert len(set(runs[0].sums)) == 10
    assert len({str(one) for one in runs[0].completions}) > 4, "the policy does not change what is generated"
    assert runs[0].completions == runs[1].completions
    assert runs[0].sums == runs[1].sums


def test_rollouts_in_mixed_precision(tmp_path: Path) -> None:
    """With ``bf16``, the usual setting on a GPU, weights are in float32 and forwards in bfloat16: rollouts are drafted for."""
    seen = trained(tmp_path, "grpo", lambda _, number: float(number % 4), {}, bf16=True, max_steps=2, **GREEDY)
    assert len(seen.completions) == 2


def test_a_seed_gives_its_rollouts_again(tmp_path: Path) -> None:
    """Sampled with ``gumbel``, rollouts of a seed do not depend on the draft: weights after ten steps are the same to the bit."""

    def of(row: list[int], _: int) -> float:
        return len(set(row)) / 12

    runs = [
        trained(tmp_path, "grpo", of, {"drafter": drafter, "accept": "gumbel", **kept})
        for drafter, kept in ((None, {}), (DRAFT, {"kv": "paged,block=2,share=on"}))
    ]
    assert runs[0].completions == runs[1].completions
    assert runs[0].sums == runs[1].sums


def test_a_head_follows_the_policy(tmp_path: Path) -> None:
    """A head that learns from the rollouts between steps leaves the rollouts of a seed as they are."""
    followed: list[Follower] = []

    def of(row: list[int], _: int) -> float:
        return len(set(row)) / 12

    class Following(transformers.TrainerCallback):
        """Has the head learn from each step's completions."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            (follower,) = followed
            follower.learn(seen[-1].completions[-1])

    seen: list[Rewards] = []
    plain = trained(tmp_path, "grpo", of, {"drafter": None, "accept": "gumbel"}, max_steps=4)

    def drafter(model: Any, rewards: Rewards) -> Any:
        followed.append(Follower("tiny-eagle3", model))
        seen.append(rewards)
        return followed[0].drafter

    settings = {"max_steps": 4, "callback": Following()}
    drafted = trained(tmp_path, "grpo", of, {"drafter": drafter, "accept": "gumbel"}, **settings)
    assert drafted.completions == plain.completions
    assert drafted.sums == plain.sums
    assert followed[0].updates == 4


def test_rewards_have_the_same_distribution(tmp_path: Path) -> None:
    """At temperature 1, among the four most likely tokens, rewards with the line have the distribution of those without it."""
    settings = {
        "per_device_train_batch_size": 32,
        "num_generations": 8,
        "max_completion_length": 4,
        "max_steps": 30,
        "learning_rate": 0.0,
        "top_k": 4,
    }
    runs = [
        trained(tmp_path, "grpo", lambda row, _: float(sum(row[1:]) % 11), drafts, **settings) for drafts in (None, {})
    ]
    counts = [Counter(reward for step in run.given for reward in step) for run in runs]
    table_2R = torch.tensor([[count[reward] for reward in sorted(counts[0])] for count in counts]).double()
    assert sum(counts[0].values()) == sum(counts[1].values()) == 960
    assert len(counts[0]) > 6
    expected_R = table_2R.mean(0)
    statistic = ((table_2R - expected_R) ** 2 / expected_R).sum()
    chance = torch.special.gammaincc(torch.tensor((len(counts[0]) - 1) / 2).double(), statistic / 2)
    assert chance > 1e-3, f"\n{table_2R}"


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The example trains, and prints how many tokens a round gave."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(Path(__file__).parent.parent / "examples/trl_grpo.py"), run_name="__main__")
    assert re.search(r"--- \d\.\d tokens a round in step 4", capsys.readouterr().out)
