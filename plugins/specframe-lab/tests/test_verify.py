"""``specframe verify``: exact and partial match, ties and bugs, two references, exit status."""

from __future__ import annotations

import json
import math
import re
from html import escape
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import browsing, faults, needs_chromium
from click.testing import Result as Exit
from command_line import invoke
from specframe_lab.grid import checked, expand
from specframe_lab.verify import Divergence, Verification, decodings, verify
from specframe_testing import fakes, harness, zoo
from specframe_testing.instrumentation.ties import Scales, tie_bound
from transformers import PreTrainedModel

from specframe.errors import OptionError
from specframe.pipeline import Pipeline
from specframe.reference import reference_decode

PROMPTS = harness.random_prompts([7, 1, 13, 2, 7, 19], 61)


def outcomes(
    target: PreTrainedModel, draft: Any, prompts: Any = PROMPTS, new: int = 12, temperature: float = 0.0, **options: Any
) -> list[Verification]:
    cell = {"target": target, "drafter": [draft], "batch_size": 3, "draft_length": 4, **options}
    return list(verify(checked(expand(cell)), prompts, new, temperature=temperature))


GUMBEL = {"accept": "gumbel", "seed": 5}


@pytest.fixture(scope="module")
def pair() -> tuple[PreTrainedModel, PreTrainedModel]:
    """A fake target and a draft that often agrees with it."""
    target = fakes.fake_target()
    return target, fakes.fake_draft(target)


def test_references_round_as_the_cells_do(pair: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    """Targets in 8 bits are exact against references with the same dtype, which is another for each, and are not lossless."""
    found = outcomes(*pair, kv=["slab", "slab,dtype=int8", "slab,dtype=fp8"])
    assert [(one.sound, one.lossless) for one in found] == [(True, True), (True, False), (True, False)]
    cells = [one.cell for one in found]
    assert decodings(cells) == 3 + 3 + 3
    assert decodings([*cells, cells[1] | {"drafter": None}]) == 4 + 3 + 3


def test_samples_are_compared_with_samples_that_are_rounded_alike(
    pair: tuple[PreTrainedModel, PreTrainedModel],
) -> None:
    """Plain sampling at batch 1, too, has the cell's dtype."""
    (found,) = outcomes(*pair, new=8, temperature=1.0, **GUMBEL, kv=["slab,dtype=int8"])
    assert found.sound
    assert found.batch_one.exact_match == 100


@pytest.mark.wide
def test_flawed_combinations_do_not(pair: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    """What reproduces a published flaw parts from both references, while plain decoding under it need not."""
    (one,) = outcomes(*pair, align="masking")
    assert not one.sound
    assert not one.lossless
    assert one.batch_one.exact_match < 50
    assert one.batch_one.exact_match < one.batch_one.partial_match < 100
    assert one.batch_one.bugs == len(one.batch_one.divergences)
    assert one.plain.exact_match == 100


@pytest.mark.wide
def test_a_divergence_says_where_and_how_close() -> None:
    """Position, both tokens and the float64 gap at that place are those of the two continuations."""
    target = zoo.build("qwen3")
    (one,) = outcomes(target, zoo.good_draft(target), align="masking")
    for found in one.batch_one.divergences:
        prompt = PROMPTS[found.index]
        expected = reference_decode(target, prompt, 12, [zoo.EOS])
        assert found.expected == expected[found.position]
        assert found.got != found.expected
        exact = zoo.build("qwen3").double()
        with torch.inference_mode():
            logits = exact(torch.tensor([prompt + expected[: found.position]])).logits[0, -1]
        best, second = logits.topk(2).values.tolist()
        assert found.gap == pytest.approx(best - second)
        assert found.short == pytest.approx(best - min(float(logits[found.got]), float(logits[found.expected])))
        assert found.kind == "bug"
        assert str(found).endswith("short of the best logit: bug")


@pytest.mark.wide
def test_divergences_of_samples_are_weighed_under_their_noise() -> None:
    """Where a flawed alignment draws another token, the expected one is the best once the noise is added: no gap is missed."""
    target = zoo.build("qwen3")
    (one,) = outcomes(target, zoo.good_draft(target), temperature=0.8, **GUMBEL, align="masking")
    assert one.batch_one.divergences
    for found in one.batch_one.divergences:
        assert found.kind == "bug"
        assert found.short >= found.gap > 0


@pytest.mark.wide
@pytest.mark.parametrize("rule", ["rejection", "block", "greedy"])
def test_rules_whose_ids_cannot_be_compared_are_refused(
    pair: tuple[PreTrainedModel, PreTrainedModel], rule: str
) -> None:
    """They draw other ids than plain sampling; without a temperature they decode greedily and are compared."""
    told = rf"^acceptance rule '{rule}' cannot be verified with a temperature: .*gumbel"
    with pytest.raises(OptionError, match=told):
        outcomes(*pair, temperature=1.0, accept=rule)
    (one,) = outcomes(*pair, accept=rule)
    assert one.sound


@pytest.mark.wide
def test_errors_that_a_model_magnifies_widen_the_bound() -> None:
    """Where a router of experts is near a tie itself, roundings decide between far logits: the bound is measured."""
    target = zoo.build("qwen3-moe").bfloat16()
    prompt = harness.random_prompts([24], zoo.VOCABULARY, seed=3)[0]
    scales = Scales(target)
    best = scales.weigh(prompt, [])
    assert math.isinf(best.short)
    worst = int(scales._logits(prompt).argmin())
    weighed = scales.weigh(prompt, [worst])
    assert weighed.bound >= best.bound
    assert not weighed.tie
    assert float(tie_bound(target, scales._logits(prompt).detach())) == pytest.approx(best.bound)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name a saved pair; one token is one character."""
    return [*zoo.save_pair(tmp_path_factory.mktemp("pair")), "--max-new-tokens", "10"]


@pytest.mark.quick
def test_the_command_says_which_cells_are_sound(saved: list[str], tmp_path: Path) -> None:
    """A grid with a flawed alignment exits with 1, shows a row per cell and writes a line for each."""
    file = tmp_path / "out.jsonl"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"turns": ["def f(x):", "more"]}\n{"prompt": "a"}\n{"text": "class A:"}\n')
    result = invoke("verify", *saved, "--align", "ragged,masking", "--prompts", str(prompts), "--output", str(file))
    assert result.exit_code == 1, result.output
    assert "align=ragged" in result.stdout
    assert "align=masking: prompt" in result.stdout
    assert "1 of 2 combinations decode as the reference decoder does" in result.stdout
    good, bad = map(json.loads, file.read_text().splitlines())
    assert good["sound"]
    assert good["batch_one"]["exact_match"] == 100
    assert good["cell"]["align"] == "ragged"
    assert not bad["sound"]
    assert bad["batch_one"]["divergences"][0]["kind"] == "bug"


@pytest.mark.wide
def test_the_command_samples_with_a_rule_that_can_be_compared(saved: list[str]) -> None:
    """A temperature takes gumbel unless another rule is named, which is refused; so is what is no temperature."""
    result = invoke("verify", *saved, "hello", "a", "--temperature", "0.9", "--batch-size", "1,2")
    assert result.exit_code == 0, result.output
    assert "2 of 2 combinations" in result.stdout
    for wrong, message in (
        (["--temperature", "1", "--accept", "block"], "acceptance rule 'block' cannot be verified with a temperature"),
        (["--temperature", "-1"], "temperature: expected a number of at least 0, got '-1'"),
        (["--temperature", "warm"], "--temperature: expected a number of at least 0, got 'warm'"),
        (["--temperature", "inf"], "--temperature: expected a finite number of at least 0, got 'inf'"),
    ):
        result = invoke("verify", *saved, "hello", *wrong)
        assert result.exit_code == 2
        assert message in result.stderr


@pytest.mark.wide
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--align", "ragged,nothing"], "align=nothing: --align: unknown alignment 'nothing': expected one of "),
        (["--batch-size", "1,x"], "batch-size=x: --batch-size: expected a whole number of at least 1, got 'x'"),
        (["--align", "ragged,masking,positions=x"], "align=masking,positions=x: "),
        (
            ["--temperature", "1", "--accept", "gumbel,block"],
            "accept=block: acceptance rule 'block' cannot be verified",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_told_for_its_cell(saved: list[str], given: list[str], message: str) -> None:
    """The other cells are verified; the command exits with 1, and so does ``--dry-run``, which says the same."""
    result = invoke("verify", *saved, "--max-new-tokens", "4", "ab", *given)
    assert result.exit_code == 1, result.output
    assert re.search(rf"^{re.escape(message)}", result.stdout, re.MULTILINE), result.output
    assert "1 of 2 combinations decode as the reference decoder does" in result.stdout
    foreseen = invoke("verify", *saved, "ab", *given, "--dry-run")
    assert foreseen.exit_code == 1
    assert re.search(rf"^{re.escape(message)}", foreseen.stderr, re.MULTILINE), foreseen.output


@pytest.mark.wide
@pytest.mark.parametrize("option", ["target", "drafter"])
def test_a_model_that_cannot_be_loaded_is_told_for_its_cell(saved: list[str], option: str) -> None:
    """A target has a reference of its own: it is missing for its cells alone."""
    given = [f"{saved[1]},no/where/at-all", "none"] if option == "target" else [saved[1], "none,no/where/at-all"]
    result = invoke("verify", "--target", given[0], "--drafter", given[1], "--max-new-tokens", "4", "ab")
    assert result.exit_code == 1, result.output
    assert re.search(rf"^{option}=no/where/at-all: ", result.stdout, re.MULTILINE), result.output
    assert "1 of 2 combinations decode as the reference decoder does" in result.stdout


@pytest.mark.wide
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_dry_run_counts_what_would_be_decoded(saved: list[str], tmp_path: Path, temperature: float) -> None:
    """As many decodings as it says are made when it is run: by the references, plainly, and by every combination."""
    asked = ["--align", "ragged,eqspec", "--batch-size", "1,2", "--temperature", str(temperature), "ab", "c"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("specframe.models.loading.load_model", lambda *_: pytest.fail("a model was loaded"))
        result = invoke("verify", *saved, *asked, "--dry-run", "--output", str(tmp_path / "out.jsonl"))
    assert result.exit_code == 0, result.output
    assert not list(tmp_path.iterdir())
    made = []
    with pytest.MonkeyPatch.context() as patched:
        generate, decode = Pipeline.generate, reference_decode
        patched.setattr(Pipeline, "generate", lambda *given, **more: made.append(2) or generate(*given, **more))
        patched.setattr(
            "specframe_lab.verify.reference_decode", lambda *given, **how: made.append(1) or decode(*given, **how)
        )
        assert invoke("verify", *saved, *asked).exit_code == 0
    assert f"4 combinations to verify: 2 prompts decoded {sum(made) // 2} times" in result.stdout
    assert f"at most {sum(made) * 10} new tokens" in result.stdout


@pytest.fixture(scope="module")
def written(saved: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Exit, Path]:
    """What the command says of a grid with a sound, a flawed and a broken combination and one left out, and its page."""
    page = tmp_path_factory.mktemp("page") / "verified.html"
    grid = ["--align", "ragged,masking,nothing", "--kv", "slab,dynamic", "def f(x):", "<a>"]
    return invoke("verify", *saved, *grid, "--output", str(page)), page


@pytest.mark.wide
def test_the_page_has_every_combination(written: tuple[Exit, Path]) -> None:
    """The page has a row per combination with its first divergence, all divergences, what was left out, and the command."""
    result, page = written
    text = page.read_text(encoding="utf-8")
    assert result.exit_code == 1, result.output
    assert result.stdout.splitlines()[-1] == str(page)
    assert "decode as the reference decoder does, ties aside.</p>" in text
    assert re.search(r'<th scope="row">align=ragged, kv=slab</th><td>exact</td><td>none</td><td>100\.0</td>', text)
    for line in result.stdout.splitlines():
        if line.startswith("align=") and ": " in line:
            name, _, why = line.partition(": ")
            assert f'<th scope="row">{escape(name)}</th><td><span class="differs">' in text
            assert f'<span class="words">{escape(why)}</span>' in text
    assert re.search(r"<details><summary>align=masking, kv=dynamic: [12]</summary>", text)
    assert "alignment &#x27;ragged&#x27; needs" in text.partition("Left out")[2]
    assert "<pre>specframe verify --target" in text
    assert "&lt;a&gt;" in text.partition("<pre>")[2]
    assert not re.search(r"https?:|<script|<img|@import|url\((?!#)", text)
    assert "<dt>prompts</dt><dd>2</dd>" in text


@pytest.mark.wide
@needs_chromium
def test_the_page_on_screens(written: tuple[Exit, Path]) -> None:
    """On wide and narrow screens, light and dark, it is no wider than the screen and breaks no rule of accessibility."""
    with browsing() as page:
        page.goto(written[1].as_uri())
        assert faults(page) == []


@pytest.mark.wide
def test_bitwise_knows_no_ties() -> None:
    """With bitwise, half precision is exact, the reference is computed alike, and a divergence that rounding explains is a bug."""
    target = zoo.build("llama").to(torch.bfloat16)
    draft = zoo.good_draft(zoo.build("llama")).to(torch.bfloat16)
    (found,) = outcomes(target, draft, [[5, 9, 2], [7]], 6, bitwise=True)
    assert found.cell["bitwise"] is True
    assert found.sound
    assert found.batch_one.exact_match == 100
    near = {"index": 0, "position": 3, "expected": 1, "got": 2, "gap": 0.0, "short": 0.001, "bound": 0.1}
    assert Divergence(**near).kind == "tie"
    told = Divergence(**near, bitwise=True)
    assert told.kind == "bug"
    assert str(told).endswith("0.001 <= 0.1 short of the best logit: bug")
