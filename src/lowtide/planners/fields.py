"""Reading the fields of a bare problem, so that every complaint names the field at fault."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lowtide.errors import InvalidProblem

MOST_SHOWN = 40


def check_names(data: object, wanted: Collection[str], optional: Collection[str] = ()) -> Mapping[str, Any]:
    """`data`, an object with every field of `wanted`, perhaps some of `optional`, and no other."""
    if not isinstance(data, Mapping):
        raise InvalidProblem(f"problem: {shown(data)} is not an object with fields", "problem")
    for name in wanted:
        if name not in data:
            raise InvalidProblem(f"{name}: missing", name)
    for name in data:
        if name not in wanted and name not in optional:
            known = ", ".join((*wanted, *optional))
            short = name if len(name) <= MOST_SHOWN else name[:MOST_SHOWN] + "..."
            raise InvalidProblem(f"{short}: there is no such field (known: {known})", short)
    return data


def check_counts(numbers: object, name: str, length: int | None = None) -> tuple[int, ...]:
    """`numbers`, a list of whole numbers >= 0, of the given length if there is one."""
    if isinstance(numbers, (str, bytes)) or not isinstance(numbers, Sequence):
        raise InvalidProblem(f"{name}: {shown(numbers)} is not a list of whole numbers", name)
    if length is not None and len(numbers) != length:
        raise InvalidProblem(f"{name}: length {len(numbers)}, not {length}", name)
    for i, number in enumerate(numbers):
        if type(number) is not int or number < 0:
            raise InvalidProblem(f"{name}: entry {i} is {shown(number)}, not a whole number >= 0", name)
    return tuple(numbers)


def check_count(number: object, name: str) -> int:
    """`number`, a whole number >= 0."""
    if type(number) is not int or number < 0:
        raise InvalidProblem(f"{name}: {shown(number)} is not a whole number >= 0", name)
    return number


def shown(thing: object) -> str:
    """What the user wrote, as JSON where it is that, and cut where it would fill the screen."""
    text = json.dumps(thing, default=repr)
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."
