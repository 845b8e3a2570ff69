"""The zoo itself: every case trains, the same way each time, and is what it says it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lowtide.measure.live import LiveBytes, storage_bytes, tensors_of
from zoo import MODELS, Case


def _train(case: Case) -> list[Any]:
    """Losses of three steps, then the parameters and buffers."""
    optimizer = torch.optim.SGD([p for p in case.model.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(case.step())
        optimizer.step()
    return [losses, list(case.model.state_dict().values())]


@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same_each_time_and_goes_down(name: str) -> None:
    """Two runs agree to the last bit, and the third loss is below the first."""
    first = _train(MODELS[name]())
    second = _train(MODELS[name]())
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    losses = first[0]
    assert all(loss.isfinite() for loss in losses)
    assert losses[2] < losses[0]


@pytest.mark.parametrize("name", MODELS)
def test_every_trainable_parameter_gets_a_gradient_and_no_other(name: str) -> None:
    case = MODELS[name]()
    assert case.model.training
    case.step()
    assert all((p.grad is not None) == p.requires_grad for p in case.model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_activations_outweigh_parameters(name: str) -> None:
    case = MODELS[name]()
    with LiveBytes("cpu", holding=[case.model, case.args, case.kwargs]) as live:
        case.step()
    held = storage_bytes(tensors_of([case.model]), "cpu")
    assert live.peak - live.start > 2 * held


def test_a_loss_inside_comes_with_the_output() -> None:
    inside = {name for name in MODELS if MODELS[name]().loss_inside}
    assert inside == {"gpt2", "llama", "t5", "loss_in_dict"}
