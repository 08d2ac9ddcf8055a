"""Grids: comma lists, cells, and what is refused before any model is loaded."""

from __future__ import annotations

import pytest
from specframe_lab.commands.lab_option_types import ListOf
from specframe_lab.grid import Cell, checked, expand, split_list
from specframe_std.command_options.options import WholeNumber

from specframe.errors import CompositionError, OptionError, SpecframeError, UnknownNameError
from specframe.models import loading as models


@pytest.fixture(autouse=True)
def _no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model fails the test."""
    monkeypatch.setattr(models, "load_model", lambda *_: pytest.fail("a model was loaded"))


def cells(**options: str) -> list[Cell]:
    return expand({"target": "tiny", "drafter": "none", **options})


@pytest.mark.wide(but=["a,b,a-values2"])
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("ragged,masking,positions=content,eqspec", ["ragged", "masking,positions=content", "eqspec"]),
        (" 1 , 4,8 ", ["1", "4", "8"]),
        ("a,b,a", ["a", "b"]),
    ],
)
def test_a_part_with_an_equals_sign_belongs_to_the_name_before_it(text: str, values: list[str]) -> None:
    """A comma list is split into names with their options; repeated values count once."""
    assert split_list(text) == values


@pytest.mark.wide
@pytest.mark.parametrize("text", ["", "a,,b", "window=4,a"])
def test_a_list_with_a_gap_is_refused(text: str) -> None:
    """A value that is missing, or options without a name, are a fault that quotes the list."""
    with pytest.raises(OptionError, match="expected a"):
        split_list(text)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("option", "value", "fault"),
    [
        ("align", "masking,positions=contents", OptionError),
        ("draft_length", "4,0", OptionError),
        ("drafter", "none,no-such-model", UnknownNameError),
        ("dtype", "float32,float31", OptionError),
        ("device", "cpu,tpu", OptionError),
        ("batch_size", "4", OptionError),
    ],
)
def test_a_bad_value_is_refused(option: str, value: str, fault: type[SpecframeError]) -> None:
    """One bad value anywhere refuses the whole grid, and no model is loaded."""
    with pytest.raises(fault):
        checked(cells(**{option: value}))


@pytest.mark.wide
def test_what_does_not_fit_is_set_apart() -> None:
    """Combinations that cannot work are left out with the reason; when all are, that is a fault."""
    grid = checked(cells(align="ragged,eqspec", kv="slab,dynamic"))
    assert [(cell["align"], cell["kv"]) for cell in grid.cells] == [
        ("ragged", "slab"),
        ("eqspec", "slab"),
        ("eqspec", "dynamic"),
    ]
    assert len(grid.refused) == 1
    assert "slab" in grid.refused[0][1]
    with pytest.raises(CompositionError, match="grow"):
        checked(cells(align="masking,padding", kv="slab"))


@pytest.mark.wide
def test_a_list_of_numbers() -> None:
    """An option of a grid converts each value of its list, and names itself in what it refuses."""
    kind = ListOf(WholeNumber(1))
    assert kind.convert("1,4", None, None) == [1, 4]
    assert kind.convert(8, None, None) == [8]
    with pytest.raises(OptionError, match="at least 1"):
        kind.convert("1,0", None, None)
    with pytest.raises(OptionError, match="list: "):
        kind.convert("1,,4", None, None)
