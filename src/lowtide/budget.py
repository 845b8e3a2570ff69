"""A memory budget as people write it, in bytes: "8GB", "1.5 GiB", "80%", "auto", or a plain number."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from lowtide.errors import InvalidBudget

UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-z]+|%)")
_FORMS = '8589934592, "8GB" (10^9 bytes each), "8GiB" (2^30 each), "1.5 GiB", "80%" of the device, or "auto"'


def parse(budget: int | str, *, capacity: Callable[[], int]) -> int:
    """The bytes that `budget` allows, rounded down.

    An int is bytes. A string is an amount with a unit (B, KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB of
    1024), a percentage from 0% to 100% of `capacity()`, or "auto", all of `capacity()`. Spaces and case do not matter.
    `capacity` gives the bytes the device can lend to this step (what others hold taken off is the caller's to do); it
    is called for percentages and "auto" only.

    >>> parse("1.5 KiB", capacity=lambda: 0)
    1536
    >>> parse("80%", capacity=lambda: 1001)
    800
    """
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise _refused(budget)
    if isinstance(budget, int):
        if budget < 0:
            raise _refused(budget)
        return budget
    text = budget.strip().lower()
    if text == "auto":
        return capacity()
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise _refused(budget)
    amount, unit = Fraction(match[1]), match[2]
    if unit == "%":
        if amount > 100:
            raise _refused(budget)
        return int(amount * capacity() / 100)
    if unit not in UNITS:
        raise _refused(budget)
    return int(amount * UNITS[unit])


def show(count: int) -> str:
    """`count` bytes for people, in powers of 1024.

    >>> show(512), show(4096), show(2480343613)
    ('512 B', '4.00 KiB', '2.31 GiB')
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        # Compare what would be printed, so that one byte less than a GiB reads 1.00 GiB and not 1024.00 MiB.
        in_hundredths = round(Fraction(100 * abs(count), UNITS[unit.lower()]))
        if in_hundredths >= 100:
            sign = "-" if count < 0 else ""
            return f"{sign}{in_hundredths // 100}.{in_hundredths % 100:02d} {unit}"
    return f"{count} B"


def _refused(budget: object) -> InvalidBudget:
    return InvalidBudget(f"memory_budget={budget!r} is not an amount of memory. Write one of: {_FORMS}.")
