"""The noun Solver: what `lowtide solve` must know of one method for one kind of problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from lowtide.errors import InvalidProblem
from lowtide.planners.fields import shown

Answer = dict[str, Any]
Check = Callable[[object, str], Any]
Word = TypeVar("Word", bound=Enum)


@dataclass(frozen=True, slots=True)
class Solver:
    """One method for one kind of problem.

    parse     turns the line's `problem` into the method's own noun; raises InvalidProblem naming the field
    solve     answers for (that noun, the budget in bytes or None for null, the options given, checked); raises
              BudgetTooSmall when nothing fits
    options   the options there are, and how each is checked: given the value and the option's name, a check returns
              what `solve` is to get, or raises InvalidProblem
    """

    parse: Callable[[Any], Any]
    solve: Callable[[Any, int | None, Mapping[str, Any]], Answer]
    options: Mapping[str, Check] = field(default_factory=dict)


def one_of(words: type[Word]) -> Check:
    """The check of an option that is one of the words of an enumeration."""

    def check(word: object, name: str) -> Word:
        for known in words:
            if word == known.value:
                return known
        raise InvalidProblem(f"{name}: {shown(word)} is not one of {', '.join(w.value for w in words)}", name)

    return check
