"""Suffix decoding as a drafter: it never changes the output, learns from what has ended, and remembers it in a file."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from specframe_std.drafters.suffix.history import HEAD
from specframe_std.drafters.suffix.suffix_drafter import SuffixDrafter
from specframe_testing import fakes, harness, zoo
from specframe_testing.conformance import DrafterSuite, TreeDrafterSuite

import specframe
from specframe import Pipeline
from specframe.contracts.drafts import Budget, Draft, Scores
from specframe.contracts.reports import Outcome
from specframe.contracts.requests import FinishReason
from specframe.contracts.round import Batch
from specframe.errors import SpecframeError
from specframe.plugins.registry import registry
from specframe.reference import reference_decode

TREE = "suffix,tree=dynamic,nodes=8,factor=4"


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestSuffix(DrafterSuite):
    """The suite, under the name it is registered by."""

    def make(self) -> str:
        return "suffix"


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestSuffixTrees(TreeDrafterSuite):
    """The suite of trees."""

    def make(self) -> str:
        return TREE

    def perfect(self, target: Any) -> Any:
        """Return None: no draft model makes it right."""
        return None


def batch_of(rows: list[list[int]], plain: tuple[int, ...] = ()) -> Batch:
    """Return these tokens as a batch, in this order; the rows ``plain`` are without speculation."""
    asked = [attrs.evolve(one, speculate=number not in plain) for number, one in enumerate(harness.requests(rows))]
    pool = harness.open_pool(asked)
    return pool.batch(sorted(pool.admit(len(rows)), key=lambda one: one.request.index))


def proposed(drafter: SuffixDrafter, batch: Batch, budget: Budget) -> list[list[int]]:
    """Return the real tokens of each row's draft."""
    draft = drafter.propose(batch, budget)
    assert draft.counts is not None
    assert draft.counts_B is not None
    assert draft.counts.tolist() == draft.counts_B.tolist()
    return [ids[:count] for ids, count in zip(draft.tokens_BN.tolist(), draft.counts.tolist(), strict=True)]


def end(drafter: SuffixDrafter, ids: list[int], reason: FinishReason = "length") -> None:
    """Report to a drafter that a sequence with this response has ended, and nothing is left."""
    batch = batch_of([[1]])
    (sequence,) = batch.sequences
    sequence.token_ids = ids
    sequence.finish(reason)
    nothing = Draft(batch.tokens_BS[:, :0])
    drafter.observe(Outcome(batch, nothing, Scores(torch.zeros(1, 1, 9)), None, batch.lengths, [sequence]))


def test_what_has_ended_is_found_by_other_rows() -> None:
    """Responses of sequences that have ended are looked up, those of aborted and failed ones are not."""
    drafter, batch = SuffixDrafter(requests=1), batch_of([[9, 1, 2]])
    for reason in ("abort", "error"):
        end(drafter, [1, 2, 6, 7], reason)  # type: ignore[arg-type]
    assert drafter.propose(batch, Budget(4)).nodes == 0
    end(drafter, [1, 2, 3, 4, 5])
    assert proposed(drafter, batch, Budget(4)) == [[3, 4]]
    end(drafter, [5, 5, 5])
    assert drafter.propose(batch, Budget(4)).nodes == 0, "the oldest response goes first"


@pytest.mark.parametrize("inside", [False, True])
def test_responses_last_over_the_steps_of_a_training_loop(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From call to call of a pipeline and of ``generate`` the latest responses are drafted, as many as were asked for and no more,
    while weights change; tokens are those of the weights as they are, and what starts anew reads the file."""
    target, prompts = copy.deepcopy(zoo.build("qwen3")), harness.random_prompts((9, 5), 97)
    file, propose, made = tmp_path / "memory", SuffixDrafter.propose, 0
    drafter = f"suffix,requests=2,factor=4,memory={file}"

    def counted(self: SuffixDrafter, batch: Batch, budget: Budget) -> Draft:
        nonlocal made
        made += 1
        return propose(self, batch, budget)

    monkeypatch.setattr(SuffixDrafter, "propose", counted)

    def loop() -> Callable[[list[int]], list[int]]:
        if not inside:
            pipe = harness.pipeline(target, drafter, draft_length=8)
            return lambda prompt: next(pipe.generate([prompt], 16)).token_ids
        assisted = specframe.assisted(drafter, 8)

        def generated(prompt: list[int]) -> list[int]:
            ids = torch.tensor([prompt])
            return target.generate(ids, max_new_tokens=16, do_sample=False, custom_generate=assisted)[
                0, len(prompt) :
            ].tolist()

        return generated

    decode, rounds = loop(), []
    for epoch in range(3):
        for prompt in prompts:
            made = 0
            found = decode(prompt)
            want = reference_decode(target, list(prompt), 16)
            assert found == (want[: want.index(zoo.EOS) + 1] if zoo.EOS in want else want)
            rounds.append(made)
            assert len(file.read_text().splitlines()) == 1 + min(2, len(rounds))
        if epoch == 1:
            decode = loop()
            with torch.no_grad():
                target.model.norm.weight.mul_(1.01)
    assert max(rounds[2:]) < min(rounds[:2]), "the epochs after the first one copy"


@pytest.mark.wide
def test_memory_outlasts_a_pipeline(tmp_path: Path) -> None:
    """What a run has said is written when no row is left, and read by the next drafter."""
    file = tmp_path / "memory"
    first = SuffixDrafter(memory=str(file))
    assert not file.exists()
    end(first, [1, 2, 3, 4, 5])
    end(first, [6, 7], "abort")
    assert file.read_text().splitlines() == [HEAD, "[1, 2, 3, 4, 5]"]
    second = SuffixDrafter(memory=str(file), requests=1)
    assert proposed(second, batch_of([[9, 1, 2]]), Budget(4)) == [[3, 4]]
    end(second, [8])
    assert file.read_text().splitlines() == [HEAD, "[8]"]


@pytest.mark.wide(but=["made by specframe\\n-memory: .*: expected the first line .*, got 'made by specframe'"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "memory: .*: expected the first line .* and the file is empty: name another file, or delete it"),
        ("mine\n", "memory: .* was not made by specframe and is left as it is"),
        ("made by specframe\n", "memory: .*: expected the first line .*, got 'made by specframe'"),
        (f"{HEAD}\n[1]\n[1, true]\n", "memory: .*, line 3: expected a list of token ids, got "),
        (f"{HEAD}\n[-1]\n", "memory: .*, line 2: expected a list of token ids, got "),
        (f"{HEAD}\n[1\n", "memory: .*, line 2: expected a list of token ids, got "),
    ],
)
def test_other_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    """A file that is empty, foreign or broken ends in one sentence, and stays as it is."""
    file = tmp_path / "memory"
    file.write_text(content)
    with pytest.raises(SpecframeError, match=f"^(drafter 'suffix': )?{message}"):
        registry().make("drafter", f"suffix,memory={file}")
    assert file.read_text() == content


@pytest.mark.wide
def test_memory_of_another_target_is_refused(tmp_path: Path) -> None:
    """Token ids that the target has not are reported before anything is decoded."""
    file = tmp_path / "memory"
    file.write_text(f"{HEAD}\n[1, 500]\n")
    pipe = Pipeline(fakes.fake_target(), f"suffix,memory={file}")
    with pytest.raises(SpecframeError, match="has the token 500: expected responses of a target with 61 tokens"):
        list(pipe.generate([[1, 2]], 4))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("tree=static", "tree: expected chain or dynamic, got 'static'"),
        ("nodes=4", "nodes: expected a static or dynamic tree with it, got a chain"),
        ("engine=other", "engine: expected own or arctic, got 'other'"),
    ],
)
def test_bad_options(options: str, message: str) -> None:
    """Options out of their ranges are refused in one sentence."""
    with pytest.raises(SpecframeError, match=f"^(drafter 'suffix': )?{message}"):
        registry().make("drafter", f"suffix,{options}")


@pytest.mark.wide
def test_the_other_engine_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its package the engine is refused by name."""
    monkeypatch.setitem(sys.modules, "arctic_inference", None)
    with pytest.raises(SpecframeError, match="'arctic' needs the package arctic-inference, which is not installed"):
        registry().make("drafter", "suffix,engine=arctic")
