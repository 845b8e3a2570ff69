"""What a model's code is told when it asks whether it is being compiled.

No: then it takes the path of plain PyTorch, whose bits are wanted. Some code asks because the front end cannot take
that path, for reasons of its own (a variable of the thread, a kernel it has no shapes for). Where the front end breaks
right beside such a question, the question is answered with yes and the frame is traced again. Where it breaks because
plain PyTorch looks at data, the answer stays, and the step is several graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType

from lowtide._compat import Break

Place = tuple[str, str]  # file and name of a function

# A break this many functions away from the question has nothing to do with it.
_NEAR = 3
# How the front end speaks of paths that depend on data.
_DATA = ("data-dependent", "generic_jump", ".item()", "dynamic shape")


class Answers:
    """The answers given so far, and those that turned out to have to be yes.

    told   ends of stacks of functions, the asking one last, that are told that they are being compiled
    why    the reason of the break that each of them brought about
    """

    def __init__(self) -> None:
        self.told: dict[tuple[Place, ...], str] = {}
        self._asked: set[tuple[Place, ...]] = set()

    def answer(self, stack: Sequence[CodeType]) -> bool:
        """Whether the innermost of these functions is told that it is being compiled."""
        places = tuple((code.co_filename, code.co_name) for code in stack)
        if any(places[-len(end) :] == end for end in self.told):
            return True
        self._asked.add(places)
        return False

    def changed_by(self, breaks: Sequence[Break]) -> bool:
        """Whether what the front end broke at changes an answer, so that it should try again."""
        asked, self._asked = self._asked, set()
        before = len(self.told)
        for found in breaks:
            if not any(word in found.reason.lower() for word in _DATA):
                self.told.update(dict.fromkeys(_beside(found.stack, asked), found.reason))
        return len(self.told) > before

    @property
    def askers(self) -> list[str]:
        """The functions that are told so, with the reason, for people."""
        return sorted({f"{name} ({reason})" for ((_, name), *_), reason in self.told.items()})


def _beside(stack: tuple[Place, ...], asked: set[tuple[Place, ...]]) -> set[tuple[Place, ...]]:
    """Of the questions asked those nearest to a break, as ends of their stacks from the function they share with it."""
    shared = {question: _shared(stack, question) for question in asked}
    longest = max(shared.values(), default=0)
    return {q[count - 1 :] for q, count in shared.items() if count == longest > 0 and len(q) - count < _NEAR}


def _shared(stack: tuple[Place, ...], question: tuple[Place, ...]) -> int:
    """How many functions two stacks share, from the outermost on."""
    count = 0
    for mine, theirs in zip(stack, question, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
