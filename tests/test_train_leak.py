"""The leak of ReLUs: there in training, never in what is judged, and gone at the end."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.pupils import QUICK, bars, perceptron
from wasserball.train import Recipe, train
from wasserball.train.held_out import HeldOut, Score
from wasserball.train.objective import Cast
from wasserball.train.setting import LEAK_ENDS, Setting

CPU = torch.device("cpu")


def network(*, inplace: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=inplace), nn.Linear(8, 3))


@pytest.mark.parametrize("inplace", [False, True])
def test_relus_leak_in_training_and_nowhere_else(inplace: bool) -> None:
    model, values = network(inplace=inplace), torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    cast = Cast(model, Recipe(leak=0.2), CPU)
    assert cast.leak is not None
    plain = model(values)
    with cast.leak.installed():
        torch.testing.assert_close(cast(values), plain)
        cast.leak.slope.fill_(0.2)
        leaky = model[2](F.leaky_relu(model[0](values), 0.2))
        torch.testing.assert_close(cast(values), leaky)
        assert torch.equal(model(values), plain)
    assert torch.equal(cast(values), plain)
    assert model[1].inplace == inplace


def test_a_dead_unit_is_taught() -> None:
    model = network(inplace=False)
    weights, biases, *_ = model.parameters()
    with torch.no_grad():
        biases.fill_(-100.0)
    cast = Cast(model, Recipe(leak=0.2), CPU)
    assert cast.leak is not None
    with cast.leak.installed():
        for slope, alive in ((0.0, False), (0.2, True)):
            cast.leak.slope.fill_(slope)
            (gradient,) = torch.autograd.grad(cast(torch.ones(2, 4)).square().sum(), weights)
            assert bool(gradient.any()) == alive


def test_the_slope_falls_to_0_before_the_end() -> None:
    recipe = Recipe(leak=0.3, epochs=6, batch_size=10, held_out=1)
    setting = Setting(model="", data="", data_fingerprint="", samples=100, recipe=recipe.content(), device="cpu")
    slopes = [setting.leak_at(step) for step in range(60)]
    assert slopes[0] == 0.3
    assert slopes == sorted(slopes, reverse=True)
    assert slopes[round(60 * LEAK_ENDS / 2)] == pytest.approx(0.15)
    assert [slope > 0 for slope in slopes] == [step < 60 * LEAK_ENDS for step in range(60)]


def test_a_model_is_judged_and_left_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, model = HeldOut.measure, perceptron()
    images = bars()[0][:20]
    apart: list[bool] = []

    def formula() -> Tensor:
        answer: Tensor = model[3](F.relu(model[1](images.flatten(1))))
        return answer

    def judge(mine: HeldOut, whom: Any) -> Score:
        apart.append(torch.equal(whom(images), formula()))
        return measure(mine, whom)

    monkeypatch.setattr(HeldOut, "measure", judge)
    train(model, bars(), out=tmp_path / "leaky", recipe=QUICK, leak=0.5)
    assert apart == [True, True]
    assert torch.equal(model(images), formula())
    assert not model[2]._forward_hooks
    other = perceptron()
    train(other, bars(), out=tmp_path / "plain", recipe=QUICK)
    assert not torch.equal(next(model.parameters()), next(other.parameters()))
