"""Budgets in every accepted form, and the message for every other."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import budget
from lowtide.errors import InvalidBudget

POWERS = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
POWERS |= {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}


def _never() -> int:
    raise AssertionError("the device must not be asked")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (0, 0),
        (8 << 30, 8 << 30),
        ("512B", 512),
        ("8GB", 8_000_000_000),
        ("8GiB", 8_589_934_592),
        ("1.5GiB", 1_610_612_736),
        ("  1.5  gib ", 1_610_612_736),
        ("0.3KB", 300),
        ("1.9B", 1),
        (".5 kib", 512),
        ("0.1TB", 100_000_000_000),
    ],
)
def test_bytes_by_hand(given: int | str, wanted: int) -> None:
    found = budget.parse(given, capacity=_never)
    assert found == wanted
    assert type(found) is int


@pytest.mark.parametrize(
    ("given", "wanted"), [("80%", 800), ("100 %", 1001), ("0%", 0), ("12.5%", 125), ("AUTO", 1001)]
)
def test_shares_of_the_device(given: str, wanted: int) -> None:
    assert budget.parse(given, capacity=lambda: 1001) == wanted


@given(st.integers(0, 10**7), st.integers(0, 6), st.sampled_from(sorted(POWERS)), st.sampled_from(["", " ", "  "]))
def test_amounts_are_exact_and_rounded_down(digits: int, places: int, unit: str, space: str) -> None:
    """Floats would lose the last byte of "0.3TB"; Decimal arithmetic is the independent answer."""
    amount = Decimal(digits).scaleb(-places)
    text = f"{amount:f}{space}{unit}"
    for spelling in (text, text.lower(), text.upper()):
        assert budget.parse(spelling, capacity=_never) == int(amount * POWERS[unit])


@given(st.integers(0, 10**15))
def test_a_whole_number_is_itself(count: int) -> None:
    assert budget.parse(count, capacity=_never) == count == budget.parse(f"{count}B", capacity=_never)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "8",
        "8G",
        "GB",
        "-1GB",
        "1e9B",
        "8 giga",
        "101%",
        "1,5GB",
        "8GBs",
        "nan%",
        "1.GB",
        "٨GB",
        True,
        False,
        -1,
        2.5,
    ]
    + [None, b"8GB", ["8GB"]],
)
def test_anything_else_is_quoted_back(wrong: Any) -> None:
    with pytest.raises(InvalidBudget) as caught:
        budget.parse(wrong, capacity=_never)
    message = str(caught.value)
    assert repr(wrong) in message
    for form in ('"8GB"', '"8GiB"', '"80%"', '"auto"'):
        assert form in message


def test_the_message() -> None:
    with pytest.raises(InvalidBudget) as caught:
        budget.parse("8G", capacity=_never)
    assert str(caught.value) == (
        "memory_budget='8G' is not an amount of memory. Write one of: 8589934592, \"8GB\" (10^9 bytes each), "
        '"8GiB" (2^30 each), "1.5 GiB", "80%" of the device, or "auto".'
    )


@pytest.mark.parametrize(
    ("count", "wanted"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1.00 KiB"),
        (1000, "1000 B"),
        (4096, "4.00 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (2480343613, "2.31 GiB"),
        (3 * 2**40, "3.00 TiB"),
        (-4096, "-4.00 KiB"),
    ],
)
def test_shown_by_hand(count: int, wanted: str) -> None:
    assert budget.show(count) == wanted


@given(st.integers(0, 10**15))
def test_what_is_shown_parses_to_nearly_the_same(count: int) -> None:
    """Two decimals: at most half a hundredth of the unit is lost, so 1 part in 200, and a byte to rounding down."""
    back = budget.parse(budget.show(count), capacity=_never)
    assert (abs(back - count) - 1) * 200 <= count
