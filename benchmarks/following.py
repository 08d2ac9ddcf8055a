"""What drafters accept of a policy that drifts: a head as it was, the head that follows, and earlier responses.

    python benchmarks/following.py [--head tiny-eagle3] [--steps 50] [--learning-rate 1.5e-4] [--output FILE.json]

A policy gradient (advantages within the samples of a prompt, as GRPO has them, one update a step) teaches the embedded target
to write long tokens: the reward is the mean number of a token's characters, blanks aside. Prompts come back after some steps,
as in epochs. The rule is ``gumbel``, under which tokens do not depend on drafts: all drafters decode the same rollouts in every
step, which is checked, and so draft for the same policy. Seconds are the process's own, on one thread.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import torch
from contenders import held_out_prompts
from rich.console import Console
from rich.table import Table
from specframe_heads.following import Follower

from specframe import Pipeline
from specframe.contracts.requests import Result

PROMPTS, EPOCH, SAMPLES, NEW, DRAFT_LENGTH = 8, 4, 4, 48, 4
"""Prompts of a step, steps of an epoch, samples of a prompt, new tokens of each, and tokens that are drafted."""
LONGEST = 6
"""Characters of a token that are rewarded at most: without a bound the policy soon writes nothing but the longest token."""


class Policy:
    """The target, which learns.

    Args:
        model: its weights change.
        tokenizer: says how long tokens are.
        rate: learning rate.
    """

    def __init__(self, model: Any, tokenizer: Any, rate: float) -> None:
        self._model, self._optimizer = model, torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
        texts = (tokenizer.decode([token]) for token in range(model.config.vocab_size))
        self._lengths_V = torch.tensor([float(min(len(text.strip()), LONGEST)) for text in texts])

    def rewards(self, results: list[Result]) -> torch.Tensor:
        """Return the mean length of the tokens of each rollout."""
        return torch.stack([self._lengths_V[result.token_ids].mean() for result in results])

    def update(self, prompts: list[list[int]], results: list[Result]) -> float:
        """Make rollouts with more than their group's reward likelier, and return the mean reward."""
        rewards_B = self.rewards(results)
        grouped_GS = rewards_B.view(-1, SAMPLES)
        spread_G1 = grouped_GS.std(1, keepdim=True) + 1e-4
        advantages_B = ((grouped_GS - grouped_GS.mean(1, keepdim=True)) / spread_G1).flatten()
        loss = torch.zeros(())
        for result, advantage in zip(results, advantages_B, strict=True):
            ids_1T = torch.tensor([[*prompts[result.index], *result.token_ids]])
            logits_TV = self._model(ids_1T).logits[0, len(prompts[result.index]) - 1 : -1]
            chosen_T = logits_TV.log_softmax(-1).gather(1, torch.tensor(result.token_ids)[:, None])
            loss = loss - advantage * chosen_T.mean() / len(results)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(rewards_B.mean())


def decoded(pipe: Pipeline, prompts: list[list[int]], step: int) -> tuple[list[Result], float]:
    """Return the rollouts of a step, and the seconds that they took."""
    pipe.seed = step
    begin = time.process_time()
    results = list(pipe.generate(prompts, NEW, temperature=1.0, samples=SAMPLES))
    return results, time.process_time() - begin


def run(head: str, steps: int, rate: float, learning_rate: float, memory: str) -> list[dict[str, Any]]:
    """Return the figures of each step.

    Raises:
        SystemExit: a drafter changed the rollouts.
    """
    base = Pipeline("tiny", None, dtype="float32", generation_config=None)
    model, tokenizer = base.target_model, base.tokenizer
    follower, policy = Follower(head, model, rate=rate, places=DRAFT_LENGTH), Policy(model, tokenizer, learning_rate)
    pipes = {
        name: Pipeline(
            model,
            drafter,
            accept="gumbel",
            draft_length=DRAFT_LENGTH,
            batch_size=PROMPTS * SAMPLES,
            generation_config=None,
        )
        for name, drafter in (
            ("plain", None),
            ("as it was", head),
            ("follows", follower.drafter),
            ("suffix", f"suffix,memory={memory}"),
        )
    }
    prompts, rows = held_out_prompts(tokenizer, PROMPTS * EPOCH, 64), list[dict[str, Any]]()
    for step in range(steps):
        some = prompts[step % EPOCH * PROMPTS :][:PROMPTS]
        found = {name: decoded(pipe, some, step) for name, pipe in pipes.items()}
        results, _ = found["plain"]
        for name, (others, _) in found.items():
            if [one.token_ids for one in others] != [one.token_ids for one in results]:
                sys.exit(f"step {step}: {name}: other tokens than plain decoding's")
        begin = time.process_time()
        loss = follower.learn(
            [[*some[one.index], *one.token_ids] for one in results], [len(some[one.index]) for one in results]
        )
        learnt, begin = time.process_time() - begin, time.process_time()
        reward = policy.update(some, results)
        rows.append(
            {
                "step": step,
                "reward": round(reward, 4),
                "loss": round(loss, 4),
                "length": {
                    name: round(pipe.report.mean_acceptance_length, 4)
                    for name, pipe in pipes.items()
                    if name != "plain"
                },
                "seconds": {name: round(seconds, 4) for name, (_, seconds) in found.items()}
                | {"following": round(learnt, 4), "policy": round(time.process_time() - begin, 4)},
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


@click.command(help=__doc__.partition("\n")[0])
@click.option("--head", default="tiny-eagle3", show_default=True, help="A head of the embedded target.")
@click.option("--steps", default=50, show_default=True, help="Steps of the policy.")
@click.option("--rate", default=2e-3, show_default=True, help="Learning rate of the head.")
@click.option("--learning-rate", default=1.5e-4, show_default=True, help="Learning rate of the policy.")
@click.option("--output", default=None, help="Write the figures here as JSON.")
def main(head: str, steps: int, rate: float, learning_rate: float, output: str | None) -> None:
    """Run everything, and print the means of the last ten steps."""
    with tempfile.TemporaryDirectory() as folder:
        rows = run(head, steps, rate, learning_rate, str(Path(folder) / "responses"))
    table = Table("drafter", "acceptance length, first step", "last ten steps", "seconds of a step's rollouts")
    for name in rows[0]["seconds"]:
        lengths = [row["length"].get(name) for row in rows]
        shown = ["", ""] if lengths[0] is None else [f"{lengths[0]:.2f}", f"{statistics.mean(lengths[-10:]):.2f}"]
        table.add_row(name, *shown, f"{statistics.median(row['seconds'][name] for row in rows):.2f}")
    Console(width=110).print(table)
    if output:
        made = {"head": head, "rate": rate, "learning_rate": learning_rate, "rows": rows}
        Path(output).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
