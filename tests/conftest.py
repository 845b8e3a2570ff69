"""One thread for torch in every test: steps this small only wait for each other's threads on a shared machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ["OMP_NUM_THREADS"] = "1"
# Exact memory counts need blocks that are split to the size asked for; exact numbers need kernels without atomics.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    """On a GPU plain PyTorch itself is exact only when told to be."""
    torch.use_deterministic_algorithms(torch.cuda.is_available())
    yield
    torch.use_deterministic_algorithms(False)
