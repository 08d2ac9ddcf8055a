"""``specframe models check``: what does not fit is named, and a wrong offset of layer ids is found by acceptance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from edited_heads import edited, without
from specframe_heads import doctor
from specframe_heads.doctor import examine, measured
from specframe_testing import zoo
from specframe_testing.heads import checkpoints

from specframe.cli import cli


def wrong(drafter: Path, target) -> list[str]:
    """Return what the doctor finds wrong in the files."""
    return [f"{one.subject}: {one.text}" for one in examine(str(drafter), target).findings if one.wrong]


@pytest.mark.wide
def test_a_wrong_offset_is_found(tmp_path: Path) -> None:
    """Of a file whose ids were written in another meaning, the doctor says by how much to shift them."""
    target = checkpoints.planted_target()
    patient = examine(str(checkpoints.planted_eagle3(tmp_path / "a", target, 3, [1, 3, 6])), target)
    assert patient.fits
    assert not any(one.wrong for one in measured(patient, 4, 16, 2))
    patient = examine(str(checkpoints.planted_eagle3(tmp_path / "b", target, 4, [1, 3, 6])), target)
    (found,) = [one for one in measured(patient, 4, 16, 2) if one.wrong]
    assert (found.subject, found.text[:48]) == ("layer ids", "more is accepted with ids shifted by +1: the fil")


@pytest.mark.wide(but=["0.12-0.15-marks0"])
@pytest.mark.parametrize(
    ("more", "error", "marks"),
    [
        (0.12, 0.15, ["ok", "UNSURE"]),
        (-0.1, 0.15, ["ok", "UNSURE"]),
        (0.9, 0.15, ["ok", "WRONG"]),
        (-0.3, 0.15, ["ok"]),
        (0.12, 0.01, ["ok", "WRONG"]),
        (-0.02, 0.01, ["ok"]),
    ],
)
def test_chance_allows_no_conclusion(
    more: float, error: float, marks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offset that is accepted about as much as the file as read is reported neither as right nor as wrong."""
    target = checkpoints.planted_target()
    patient = examine(str(checkpoints.planted_eagle3(tmp_path, target, 3, [1, 3, 6])), target)
    monkeypatch.setattr(
        doctor,
        "acceptance",
        lambda _, shift, *__: doctor.HeadAcceptance(60, 2.1 + more * (shift > 0) - (shift < 0), error),
    )
    assert [one.mark for one in measured(patient, 4, 16, 2)] == marks


def test_runs_are_compared_text_by_text() -> None:
    """The standard error of a difference is that over prompts: a prompt that every run foresees well says nothing of offsets."""
    first = doctor.HeadAcceptance(80, 2.0, 0.2, (1.2, 1.8, 2.0, 3.0))
    more, error = doctor.HeadAcceptance(80, 2.1, 0.2, (1.3, 1.9, 2.1, 3.1)).beyond(first)
    assert (more, error) == (pytest.approx(0.1), pytest.approx(0, abs=1e-9))
    more, error = doctor.HeadAcceptance(80, 2.1, 0.2, (1.2, 2.0, 2.0, 3.2)).beyond(first)
    assert (more, error) == (pytest.approx(0.1), pytest.approx(0.2 / 12**0.5))
    assert doctor.HeadAcceptance(80, 2.1, 0.15).beyond(doctor.HeadAcceptance(80, 2.0, 0.2))[1] == pytest.approx(0.25)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: {**t, "d2t": t["d2t"] + torch.arange(40)}, "d2t seems to have ids where offsets are expected"),
        (without("fc.weight"), "lacks the tensor 'fc.weight'"),
        (without("d2t", "t2d"), "expected a tensor d2t"),
        (
            lambda t: {**t, "fc.weight": t["fc.weight"][:, :60].contiguous()},
            "expected shape (16, 96), as its configuration says",
        ),
    ],
)
def test_wrong_tensors_are_named(change, says: str, tmp_path: Path) -> None:
    """A mapping of ids, a missing tensor, a missing mapping and a tensor of another shape are each named in a sentence."""
    target = zoo.build("qwen3")
    folder = checkpoints.eagle3(tmp_path, target, drafted=40)
    edited(folder, change)
    assert says in " ".join(wrong(folder, target))


@pytest.mark.wide
def test_another_targets_head_is_named(tmp_path: Path) -> None:
    """A head for another hidden size, for another vocabulary and for another depth are each told apart."""
    target = zoo.build("qwen3")
    folder = checkpoints.eagle3(tmp_path, target)
    edited(folder, target_hidden_size=64)
    told = "for another target: expected a target with hidden states of size 64, got 32"
    assert told in " ".join(wrong(folder, target))
    edited(folder, target_hidden_size=32, eagle_aux_hidden_state_layer_ids=[2, 18, 33])
    assert "for a target of another depth" in wrong(folder, target)[0]


@pytest.mark.wide
def test_the_command_prints_findings(tmp_path: Path) -> None:
    """The command prints a table with acceptance, and ends with status 2 where something is wrong."""
    target, other = checkpoints.planted_target(3, zoo.VOCABULARY), zoo.build("qwen3")
    for name, model in {"target": target, "other": other}.items():
        model.save_pretrained(tmp_path / name)
        zoo.character_tokenizer().save_pretrained(tmp_path / name)
    head = checkpoints.planted_eagle3(tmp_path / "head", target, 2, [1, 2, 3])
    line = ["models", "check", str(head), "--limit", "2", "--max-new-tokens", "12", "--target"]
    done = CliRunner().invoke(cli, [*line, str(tmp_path / "target")])
    assert done.exit_code == 0, done.output
    assert "mean acceptance length of 4 drafted in 4 rounds: as read" in done.output
    done = CliRunner().invoke(cli, [*line, str(tmp_path / "other")])
    assert done.exit_code == 2, done.output
    assert "WRONG" in done.output
    assert "for another target" in done.output


def test_targets_without_a_tokenizer_are_checked(tmp_path: Path) -> None:
    """A target without a tokenizer continues token ids, which the report says."""
    checkpoints.planted_target(3, zoo.VOCABULARY).save_pretrained(tmp_path / "target")
    head = checkpoints.planted_eagle3(tmp_path / "head", checkpoints.planted_target(3, zoo.VOCABULARY), 2, [1, 2, 3])
    line = ["models", "check", str(head), "--max-new-tokens", "12", "--target", str(tmp_path / "target")]
    done = CliRunner().invoke(cli, line)
    assert done.exit_code == 0, done.output
    assert "prompts" in done.output
    assert "token ids instead of texts" in done.output
    assert "as read 5." in done.output


@pytest.mark.wide
def test_a_target_that_nothing_tells_is_asked_for(tmp_path: Path) -> None:
    """Without ``--target`` a folder is refused in a sentence: only an alias says which target it is for."""
    done = CliRunner().invoke(cli, ["models", "check", str(tmp_path)])
    assert done.exit_code == 2
    assert f"--target: expected the model that {tmp_path} is for" in f"{done.output}{done.exception}"
