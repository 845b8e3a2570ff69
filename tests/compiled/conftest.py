"""Inductor's files go to a folder of the test run's own, which all of its workers share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where Inductor keeps what it has compiled."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return str(shared / "inductor")


@pytest.fixture(autouse=True)
def _inductor(cache: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", cache)
    torch.compiler.reset()
    yield
    torch.compiler.reset()
