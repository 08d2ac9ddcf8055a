"""Train the embedded pair on the Python standard library's own source.

    python -m specframe_tiny.train --work WORK_DIR                  # all stages: on two CPU cores about two hours
    python -m specframe_tiny.train --work WORK_DIR --stage draft

Stages, each skipped when its result is in the work directory and resumed from its last checkpoint when it was cut off:

    tokenizer   byte-level BPE of 2,048 entries on the training modules
    target      next-token prediction on the training modules
    rollouts    the target's own greedy continuations of training snippets
    lessons     the target's most likely tokens after every token of the rollouts and of half as many source snippets
    draft       distillation on the lessons, from the target's own embeddings
    polished    the same on the rollouts alone
    long        lessons as before, on continuations of training snippets of 960 tokens
    stretched   distillation on both kinds of rollouts, so that the draft is as good after a long prompt
    evaluate    loss and draft acceptance on held-out modules
    export      safetensors in bfloat16 with tokenizer files, loadable by ``AutoModelForCausalLM``

A batch is drawn from a generator seeded by (seed, step), so a resumed run sees the batches an undisturbed run would have seen.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

Model = Any
"""A Qwen3ForCausalLM, compiled or not."""

SEED = 20
VOCABULARY = 2048
END_OF_TEXT = "<|endoftext|>"
CHAT_TEMPLATE = r"""{#- The target has read Python and no chats: messages become comments, and answers of the assistant code. -#}
{%- for message in messages -%}
{%- if message.content is not string -%}
{{- raise_exception("expected messages whose content is a text") -}}
{%- elif message.role == "assistant" -%}
{{- message.content + "\n" -}}
{%- else -%}
{{- "# " + message.content.replace("\n", "\n# ") + "\n" -}}
{%- endif -%}
{%- endfor -%}
"""
WINDOW = 512
HELD_OUT = (
    "asyncio/queues.py", "bisect.py", "calendar.py", "colorsys.py", "configparser.py", "email/message.py", "fractions.py",
    "http/cookies.py", "json/encoder.py", "logging/config.py", "queue.py", "sched.py", "shelve.py", "statistics.py",
    "textwrap.py", "urllib/robotparser.py", "zipapp.py",
)  # fmt: skip
SKIPPED_FOLDERS = {"test", "tests", "site-packages", "encodings", "pydoc_data", "idle_test", "__pycache__"}

TARGET = Qwen3Config(
    vocab_size=VOCABULARY, hidden_size=192, num_hidden_layers=10, num_attention_heads=6, num_key_value_heads=2, head_dim=32,
    intermediate_size=512, max_position_embeddings=2048, tie_word_embeddings=True,
    bos_token_id=None, eos_token_id=0, pad_token_id=0,
)  # fmt: skip
DRAFT = Qwen3Config(
    vocab_size=VOCABULARY, hidden_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    intermediate_size=512, max_position_embeddings=2048, tie_word_embeddings=True,
    bos_token_id=None, eos_token_id=0, pad_token_id=0,
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- corpus
def standard_library() -> Iterator[tuple[str, str]]:
    """Yield (path inside the library, source) of every module, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if not SKIPPED_FOLDERS.intersection(inside.parts):
            yield inside.as_posix(), path.read_text(encoding="utf-8", errors="replace")


def split_corpus() -> tuple[list[str], list[str]]:
    """Return the sources to train on and the held-out sources."""
    training: list[str] = []
    held_out: list[str] = []
    for name, source in standard_library():
        (held_out if name in HELD_OUT else training).append(source)
    if len(held_out) != len(HELD_OUT):
        raise SystemExit(f"expected {len(HELD_OUT)} held-out modules in this Python's library, found {len(held_out)}")
    return training, held_out


def train_tokenizer(sources: list[str]) -> Tokenizer:
    """Return a byte-level BPE tokenizer in which every string can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sources, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, sources: list[str]) -> torch.Tensor:
    """Return one stream of token ids, every source followed by the end-of-text id."""
    stream: list[int] = []
    for source in sources:
        stream += tokenizer.encode(source).ids
        stream.append(0)
    return torch.tensor(stream)


def windows(stream: torch.Tensor, count: int, length: int, step: int, salt: int = 0) -> torch.Tensor:
    """Return ``count`` windows of ``length`` ids, (count, length), drawn by (seed, salt, step)."""
    generator = torch.Generator().manual_seed(SEED * 1_000_003 + salt * 7_919_777 + step)
    starts = torch.randint(len(stream) - length, (count,), generator=generator)
    return torch.stack([stream[s : s + length] for s in starts.tolist()])


def spaced(stream: torch.Tensor, count: int, length: int) -> torch.Tensor:
    """Return ``count`` snippets of ``length`` ids at equal distances, (count, length)."""
    starts = torch.linspace(0, len(stream) - length - 1, count).long().tolist()
    return torch.stack([stream[start : start + length] for start in starts])


# -------------------------------------------------------------------------------------------------------------- training
class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by Newton-Schulz iterations (Jordan et al. 2024), matched to AdamW's update size.

    ``torch.optim.Muon`` iterates in bfloat16, which many CPUs emulate at a twentieth of their float32 speed; this one stays
    in the parameters' own type.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every parameter once."""
        for group in self.param_groups:
            for parameter in group["params"]:
                average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                average.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalise(torch.lerp(parameter.grad, average, group["momentum"]))
                parameter.add_(update, alpha=-group["lr"] * 0.2 * max(parameter.shape) ** 0.5)


def orthogonalise(matrix: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Return the nearest semi-orthogonal matrix, roughly, by a quintic Newton-Schulz iteration."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix) / (matrix.norm() + 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if tall else x


class TinyOptimizers:
    """Muon for the weight matrices inside the layers, AdamW for embeddings and norms; one linear-decay schedule."""

    def __init__(
        self, model: torch.nn.Module, muon_rate: float, adam_rate: float, steps: int, warm_up: int = 50
    ) -> None:
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        self.parts = [
            Muon(matrices, lr=muon_rate),
            torch.optim.AdamW(others, lr=adam_rate, weight_decay=0.0, betas=(0.9, 0.98)),
        ]
        self.rates, self.steps, self.warm_up = (muon_rate, adam_rate), steps, warm_up

    def step(self, step: int) -> None:
        """Update at the rate of this step: a warm-up, constant to a quarter of the way, then linear to 2%."""
        warm = min(1.0, (step + 1) / self.warm_up)
        scale = warm * max(0.02, min(1.0, (self.steps - step) / (0.75 * self.steps)))
        for part, rate in zip(self.parts, self.rates, strict=True):
            part.param_groups[0]["lr"] = rate * scale
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict]:
        """Return what a checkpoint needs."""
        return [part.state_dict() for part in self.parts]

    def load(self, states: list[dict]) -> None:
        """Go on from a checkpoint."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def train(
    name: str,
    model: torch.nn.Module,
    loss_at: Callable[[int], torch.Tensor],
    steps: int,
    rates: tuple[float, float],
    work: Path,
) -> None:
    """Run ``steps`` updates of ``loss_at(step)``, keeping a checkpoint; the finished weights go to ``name.pt``.

    Where those are there already they are loaded.
    """
    checkpoint, done = work / f"{name}.checkpoint.pt", work / f"{name}.pt"
    if done.exists():
        model.load_state_dict(torch.load(done, weights_only=True))
        return
    optimizers = TinyOptimizers(model, *rates, steps)
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizers.load(saved["optimizers"])
        first = saved["step"]
        print(f"{name}: resumed at step {first}", flush=True)
    started, smooth = time.time(), None
    for step in range(first, steps):
        loss = loss_at(step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(step)
        smooth = loss.item() if smooth is None else 0.98 * smooth + 0.02 * loss.item()
        if (step + 1) % 20 == 0:
            pace = (time.time() - started) / (step + 1 - first)
            print(f"{name}: step {step + 1}/{steps} loss {smooth:.4f} {pace:.2f} s/step", flush=True)
        if (step + 1) % 100 == 0:
            partial = checkpoint.with_suffix(".partial")
            torch.save({"model": model.state_dict(), "optimizers": optimizers.state(), "step": step + 1}, partial)
            partial.replace(checkpoint)
    torch.save(model.state_dict(), done)
    checkpoint.unlink(missing_ok=True)


def next_token_loss(model: Model, ids: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of every next token of ``ids`` (N, T), in nats."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def teach(target: Model, ids: torch.Tensor, k: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the target's ``k`` most likely tokens after every token of ``ids`` and their probabilities, (N, T, k) each."""
    likely, chances = [], []
    for part in ids.split(32):
        top = target(input_ids=part, use_cache=False).logits.softmax(-1).topk(k)
        likely.append(top.indices.short())
        chances.append(top.values.half())
        print(f"teacher: {32 * len(likely)}/{len(ids)}", flush=True)
    return torch.cat(likely), torch.cat(chances)


def distillation_loss(draft: Model, ids: torch.Tensor, likely: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """Cross entropy with the target's distribution, half of it with all mass on the target's most likely token."""
    scores = draft(input_ids=ids, use_cache=False).logits
    logs = scores.gather(-1, likely.long()) - scores.logsumexp(-1, keepdim=True)
    weights = 0.5 * chances.float()
    weights[..., 0] += 0.5
    return -(weights * logs).sum(-1).mean()


def lesson(draft: Model, lessons: list[torch.Tensor], count: int, size: int = 16) -> Callable[[int], torch.Tensor]:
    """Return the distillation loss of a step: ``size`` of the first ``count`` lessons, drawn by (seed, step)."""

    def loss_at(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(SEED + step)
        chosen = torch.randint(count, (size,), generator=generator)
        return distillation_loss(draft, *(part[chosen] for part in lessons))

    return loss_at


@torch.no_grad()
def roll_out(target: Model, stream: torch.Tensor, count: int, prompt: int, new: int, salt: int) -> torch.Tensor:
    """Return greedy continuations of ``count`` training snippets, (count, prompt + new)."""
    rows, batch = [], 128
    for start in range(0, count, batch):
        ids = windows(stream, batch, prompt, start, salt)
        full = target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False
        )
        rows.append(full)
        print(f"rollouts: {start + batch}/{count}", flush=True)
    return torch.cat(rows)[:count]


# ------------------------------------------------------------------------------------------------------------ evaluation
@torch.no_grad()
def held_out_loss(model: Model, stream: torch.Tensor) -> float:
    """Return the mean next-token loss on a token stream, in windows of the training length."""
    rows = stream[: len(stream) // WINDOW * WINDOW].view(-1, WINDOW)
    losses = [next_token_loss(model, part).item() * len(part) for part in rows.split(16)]
    return sum(losses) / len(rows)


@torch.no_grad()
def greedy_acceptance(
    target: Model,
    draft: Model,
    stream: torch.Tensor,
    k: int = 4,
    count: int = 128,
    prompt: int = 96,
    new: int = 64,
) -> float:
    """Accepted over proposed draft tokens at draft length ``k``, both models greedy, on evenly spaced held-out snippets."""
    ids = spaced(stream, count, prompt)
    mask = torch.ones_like(ids)
    full = target.generate(ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False)
    proposed = accepted = 0
    place = [prompt] * count
    while min(place) < prompt + new - k:
        length = min(place)
        rows = [r for r in range(count) if place[r] == length]
        head = full[rows, :length]
        tail = draft.generate(
            head,
            attention_mask=torch.ones_like(head),
            max_new_tokens=k,
            min_new_tokens=k,
            do_sample=False,
            use_cache=True,
        )[:, length:]
        agree = (tail == full[rows, length : length + k]).long().cumprod(1).sum(1).tolist()
        for row, kept in zip(rows, agree, strict=True):
            proposed, accepted = proposed + k, accepted + kept
            place[row] += kept + 1
    return accepted / proposed


def provenance(training: list[str], held_out: list[str]) -> dict:
    """Return what the weights were made from and with."""
    digest = hashlib.sha256("".join(training).encode()).hexdigest()
    return {
        "corpus": f"standard library of Python {platform.python_version()}",
        "training_modules": len(training),
        "held_out_modules": len(held_out),
        "training_sha256": digest,
        "torch": torch.__version__,
        "seed": SEED,
    }


# ---------------------------------------------------------------------------------------------------------------- stages
def export(model: Model, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a model in bfloat16 and the tokenizer, as ``from_pretrained`` reads them."""
    model.to(torch.bfloat16).save_pretrained(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT)
    fast.model_max_length = model.config.max_position_embeddings
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def once(file: Path, make: Callable[[], Any]) -> Any:
    """Return what ``file`` holds, made and saved first where there is none."""
    if not file.exists():
        torch.save(make(), file)
    return torch.load(file, weights_only=True)


def learn_target(options: argparse.Namespace, target: Model, stream: torch.Tensor) -> None:
    """Run the stage ``target``."""
    quick = torch.compile(target) if options.compile else target

    def loss_at(step: int) -> torch.Tensor:
        return next_token_loss(quick, windows(stream, 8, WINDOW + 1, step))

    train("target", target, loss_at, options.target_steps, (4e-3, 3e-3), options.work)


def learn_draft(options: argparse.Namespace, target: Model, draft: Model, stream: torch.Tensor) -> None:
    """Run the stages from ``rollouts`` to ``stretched``."""
    work = options.work
    quick = torch.compile(draft) if options.compile else draft

    def short() -> tuple[torch.Tensor, ...]:
        snippets = windows(stream, options.rollouts // 2, rollouts.shape[1], 0, salt=2)
        ids = torch.cat([rollouts, snippets])
        return ids, *teach(target, ids)

    def long() -> tuple[torch.Tensor, ...]:
        ids = roll_out(target, stream, options.long_rollouts, prompt=960, new=128, salt=3)
        return ids, *teach(target, ids)

    rollouts = once(
        work / "rollouts.pt", lambda: roll_out(target, stream, options.rollouts, prompt=64, new=128, salt=1)
    )
    lessons = once(work / "lessons.pt", short)
    draft.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    train("draft", draft, lesson(quick, lessons, len(lessons[0])), options.draft_steps, (6e-3, 2e-3), work)
    train("polished", draft, lesson(quick, lessons, options.rollouts), options.polish_steps, (3e-3, 1e-3), work)

    short_loss = lesson(quick, lessons, options.rollouts, 8)
    long_loss = lesson(quick, once(work / "long.pt", long), options.long_rollouts, 3)

    def both(step: int) -> torch.Tensor:
        return short_loss(step) + long_loss(step)

    train("stretched", draft, both, options.stretch_steps, (1.5e-3, 5e-4), work)


def main(arguments: list[str] | None = None) -> None:
    """Run the stages that have no result yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="directory for checkpoints and intermediate results")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where target/ and draft/ are written")
    parser.add_argument("--target-steps", type=int, default=1100)
    parser.add_argument("--draft-steps", type=int, default=1600)
    parser.add_argument("--polish-steps", type=int, default=3600)
    parser.add_argument("--stretch-steps", type=int, default=1200)
    parser.add_argument("--rollouts", type=int, default=12288)
    parser.add_argument("--long-rollouts", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true", help="compile the models for training (needs a C++ compiler)")
    options = parser.parse_args(arguments)
    for folder in (options.work, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    work = options.work

    training, held_out = split_corpus()
    vocabulary = work / "tokenizer.json"
    if not vocabulary.exists():
        train_tokenizer(training).save(str(vocabulary))
    tokenizer = Tokenizer.from_file(str(vocabulary))
    stream, held_stream = once(work / "stream.pt", lambda: (encode(tokenizer, training), encode(tokenizer, held_out)))
    print(f"corpus: {len(stream):,} tokens, held out {len(held_stream):,}", flush=True)

    torch.manual_seed(SEED)
    target: Model = Qwen3ForCausalLM(TARGET)
    draft: Model = Qwen3ForCausalLM(DRAFT)
    learn_target(options, target, stream)
    target.to(torch.bfloat16).float().eval()  # the weights as they are exported
    print(f"target: held-out loss {held_out_loss(target, held_stream):.4f}", flush=True)
    learn_draft(options, target, draft, stream)
    draft.to(torch.bfloat16).float().eval()

    figures = {
        "target_parameters": target.num_parameters(),
        "draft_parameters": draft.num_parameters(),
        "target_held_out_loss": round(held_out_loss(target, held_stream), 4),
        "draft_held_out_loss": round(held_out_loss(draft, held_stream), 4),
        "draft_acceptance_rate_k4": round(greedy_acceptance(target, draft, held_stream), 4),
        "draft_acceptance_rate_k4_long": round(greedy_acceptance(target, draft, held_stream, prompt=768), 4),
        **provenance(training, held_out),
    }
    print(json.dumps(figures, indent=2), flush=True)
    (options.out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    export(target, tokenizer, options.out / "target")
    export(draft, tokenizer, options.out / "draft")


if __name__ == "__main__":
    main()
