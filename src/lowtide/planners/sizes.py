"""The noun Sizes: the bare problem of `min_peak`, a line of layers of which only the bytes matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lowtide.errors import InvalidProblem
from lowtide.planners.fields import check_counts, check_names


@dataclass(frozen=True, slots=True)
class Sizes:
    """A line of layers, each reading only the one before it.

    bytes   size of each layer's output, >= 0; the first is the network's input, the last the layer of the loss
    """

    bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        check_counts(self.bytes, "bytes")
        if not self.bytes:
            raise InvalidProblem("bytes: there must be at least one layer", "bytes")

    def to_json(self) -> dict[str, Any]:
        """The problem as a JSON object."""
        return {"bytes": list(self.bytes)}

    @classmethod
    def from_json(cls, data: object) -> Sizes:
        """The problem that `to_json` wrote.

        >>> Sizes.from_json({"bytes": [4, 2, 1]})
        Sizes(bytes=(4, 2, 1))
        """
        fields = check_names(data, ("bytes",))
        return cls(check_counts(fields["bytes"], "bytes"))

    def __str__(self) -> str:
        return f"bytes {' '.join(map(str, self.bytes))}\n"

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """The problem that `str` printed as `text`."""
        name, *words = text.split() or [""]
        if name != "bytes":
            raise InvalidProblem(f"bytes: expected the word 'bytes', found {name!r}", "bytes")
        if not all(word.isdecimal() for word in words):
            raise InvalidProblem(f"bytes: {' '.join(words)!r} is not a line of whole numbers >= 0", "bytes")
        return cls(tuple(map(int, words)))
