"""What docs/methods shows is what happens: `lowtide solve` lines, Python sessions, and what is made from benchmarks."""

from __future__ import annotations

import doctest
import importlib.util
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from lowtide import program, solve
from lowtide.planners.registry import PLANNERS
from tests.planners.test_planners import chain

ROOT = Path(__file__).parents[1]
METHODS = ROOT / "docs" / "methods"
EXAMPLE = re.compile(r"^\$ echo '(.*)' \| lowtide solve (\w+)\n(.*)$", re.MULTILINE)
EXAMPLES = [(path.name, *match) for path in sorted(METHODS.glob("*.md")) for match in EXAMPLE.findall(path.read_text())]


@pytest.mark.parametrize(("page", "problem", "method", "printed"), EXAMPLES)
def test_the_example_prints_what_it_says(page: str, problem: str, method: str, printed: str) -> None:
    answers = io.StringIO()
    assert solve.run(method, [problem.encode()], answers, io.StringIO()) == 0, page
    assert answers.getvalue() == printed + "\n"


def test_there_are_examples() -> None:
    pages = {"min_peak.md", "rotor.md", "exact.md", "lower_sets.md", "closed_sets.md"}
    assert pages <= {page for page, *_ in EXAMPLES}


@pytest.mark.parametrize("page", ["programs", "sqrt", "greedy", "keep_all", "exact", "nested", "best"])
def test_the_session_goes_as_written(page: str) -> None:
    """`nine` is what the page on programs makes."""
    names = {**vars(program), "PLANNERS": PLANNERS, "nine": chain(9)}
    found = doctest.testfile(str(METHODS / f"{page}.md"), module_relative=False, globs=names)
    assert found.attempted
    assert not found.failed


def test_every_planner_has_its_page() -> None:
    assert {path.stem for path in METHODS.glob("*.md")} >= PLANNERS.keys()


@pytest.mark.parametrize(
    ("maker", "page", "lines"),
    [
        ("growth", "growth.svg", ("planners", "comparison", "speed")),
        ("figures", "figures.md", ("planners", "comparison")),
        ("curves", "budgets.svg", ("budgets",)),
        ("budgets", "budgets.md", ("budgets", "optimum", "speed")),
        ("devices_table", "../devices-figures.md", ("estimates",)),
        ("compiled_table", "../compiled_steps.md", ("compiled",)),
    ],
)
def test_what_is_made_from_the_lines_is_up_to_date(
    maker: str, page: str, lines: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    files = [ROOT / "bench" / "results" / f"{name}.jsonl" for name in lines]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert _bench(maker).draw(rows) == (METHODS / page).read_text()


def _bench(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "bench" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
