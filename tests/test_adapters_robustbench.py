"""RobustBench: one of its own networks is evaluated like any other, and the verdict has the shape of its files."""

import ast
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import wasserball as wb
from tests.victims import grey_images, network, predictions
from wasserball.adapters.robustbench import model_info, write_model_info

# `make setup` puts it there. Its data loaders want torchvision, its networks do not: they are loaded from their files.
ROOT = Path(sys.prefix) / "share" / "robustbench" / "robustbench"
pytestmark = pytest.mark.skipif(not ROOT.is_dir(), reason="robustbench is not where `make setup` puts it")


def robustbench_network() -> nn.Module:
    """The WideResNet that most of its models are, at its smallest."""
    file = ROOT / "model_zoo" / "architectures" / "wide_resnet.py"
    spec = importlib.util.spec_from_file_location("wide_resnet", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    model: nn.Module = module.WideResNet(depth=10, widen_factor=1, bias_last=True)
    return model.eval()


def their_fields() -> list[str]:
    """Those of its class ModelInfo, in their order."""
    tree = ast.parse((ROOT / "utils.py").read_text(encoding="utf-8"))
    [info] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelInfo"]
    return [
        item.target.id for item in info.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]


def test_a_model_of_robustbench_is_evaluated_like_any_other(tmp_path: Path) -> None:
    model, images = robustbench_network(), torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    data = images, predictions(model, images)
    run = wb.evaluate(model, data, attacks=[wb.PGD(eps=0, steps=5)], eps=0.01, out=tmp_path / "run", probes=0)
    assert run.summary["clean_accuracy"] == 1
    assert run.summary["results"][0]["valid_fraction"] == 1
    assert model_info(run, dataset="cifar10")["name"] == "WideResNet"
    adversarial = wb.PGD(eps=0.01, steps=5).bind(model).perturb(*data)
    fooled = (predictions(model, adversarial) != data[1]).double().mean().item()
    assert run.summary["results"][0]["robust_accuracy"] == pytest.approx(1 - fooled)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wb.Run:
    model, images = network(), grey_images(12)
    labels = predictions(model, images)
    labels[0] = (labels[0] + 1) % 4
    attacks = [wb.PGD(eps=0, steps=4), wb.Auto(eps=0, steps=4)]
    out = tmp_path_factory.mktemp("runs") / "run"
    return wb.evaluate(model, (images, labels), attacks=attacks, eps=[0.02, 0.1], out=out, probes=0)


def test_the_entry_has_the_fields_of_robustbench_and_then_ours(run: wb.Run) -> None:
    info = model_info(run, dataset="cifar10", eps=0.1, architecture="MLP", venue="Unpublished", reported="12.0")
    theirs = [name for name in their_fields() if not name.startswith("corruptions")]  # of another threat model
    assert len(theirs) == 13
    assert list(info)[: len(theirs)] == theirs
    worst = next(row for row in run.summary["worst_case"] if row["eps"] == 0.1)
    assert info["autoattack_acc"] == f"{100 * worst['robust_accuracy']:.2f}"
    assert info["clean_acc"] == f"{1100 / 12:.2f}"
    assert float(info["autoattack_acc"]) < float(info["clean_acc"])
    assert (info["eps"], info["threat_model"], info["valid"]) == ("0.1", "Wasserstein", "100.00")
    assert info["number_images"] == 12
    assert len(info["attacks"]) == 2
    assert info["cost"] == [repr(wb.LocalCost(5)), repr(wb.LocalCost(7))]


def test_the_file_lies_where_robustbench_looks(run: wb.Run, tmp_path: Path) -> None:
    path = write_model_info(run, tmp_path, model="Me2026Robust", dataset="mnist", eps=0.02)
    assert path == tmp_path / "mnist" / "Wasserstein" / "Me2026Robust.json"
    assert json.loads(path.read_text(encoding="utf-8")) == model_info(run, dataset="mnist", eps=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(), r"eps must be given for a run with several radii, one of 0\.02, 0\.1"),
        (dict(eps=0.3), r"eps must be a radius of the run, one of 0\.02, 0\.1, got 0\.3"),
    ],
)
def test_the_radius_must_be_one_of_the_runs(run: wb.Run, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_info(run, dataset="mnist", **options)
