"""GRPO with rollouts that are decoded with drafts: one line more than TRL's own. It needs the package trl."""

from tempfile import TemporaryDirectory

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import specframe
from specframe.models.loading import load_model, load_tokenizer

PROMPTS = ["import os\n", "def read_lines(path):\n", "class Stack:\n", "for index in range("]


def reward(completions: list[str], **_: object) -> list[float]:
    """Reward completions that return something."""
    return [float("return" in text) for text in completions]


def main(steps: int = 4) -> None:
    model, draft = (load_model(name, name, torch.device("cpu"), torch.float32) for name in ("tiny", "tiny-draft"))
    with TemporaryDirectory() as folder:
        config = GRPOConfig(
            folder, per_device_train_batch_size=8, num_generations=4, max_completion_length=32, max_steps=steps,
            learning_rate=1e-5, use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": PROMPTS})
        trainer = GRPOTrainer(model, reward, config, data, processing_class=load_tokenizer("tiny"))
        handle = specframe.accelerate(trainer.model, draft, draft_length=4)
        trainer.train()
    print(f"--- {handle.report.mean_acceptance_length:.1f} tokens a round in step {trainer.state.global_step}")


if __name__ == "__main__":
    main()
