"""Every `lowtide solve` example in docs/methods prints what the document says."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from lowtide import solve

METHODS = Path(__file__).parents[1] / "docs" / "methods"
EXAMPLE = re.compile(r"^\$ echo '(.*)' \| lowtide solve (\w+)\n(.*)$", re.MULTILINE)
EXAMPLES = [(path.name, *match) for path in sorted(METHODS.glob("*.md")) for match in EXAMPLE.findall(path.read_text())]


@pytest.mark.parametrize(("page", "problem", "method", "printed"), EXAMPLES)
def test_the_example_prints_what_it_says(page: str, problem: str, method: str, printed: str) -> None:
    answers = io.StringIO()
    assert solve.run(method, [problem.encode()], answers, io.StringIO()) == 0, page
    assert answers.getvalue() == printed + "\n"


def test_there_are_examples() -> None:
    assert {"min_peak.md", "rotor.md", "exact.md"} <= {page for page, *_ in EXAMPLES}
