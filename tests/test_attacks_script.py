"""The script behind the README's figures, small: each line says what was run and what came of it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import wasserball as wb
from experiments import _paper, attacks
from wasserball import zoo
from wasserball.attacks.losses import cross_entropy

LIMIT = 5


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    images, labels = zoo.load_sample()
    save_file({"images": (255 * images).round().to(torch.uint8), "labels": labels}, folder / "data.safetensors")
    save_file(zoo.load_model("mnist-standard").state_dict(), folder / "weights.safetensors")
    places = {"network": "mnist", "weights": folder / "weights.safetensors", "data": folder / "data.safetensors"}
    return [f"--{name}={place}" for name, place in places.items()]


def run(files: list[str], out: Path, *options: str) -> list[dict[str, object]]:
    attacks.main([*files, f"--limit={LIMIT}", f"--out={out}", "--device=cpu", *options])

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in out.read_text().splitlines()]


def test_a_line_for_each_attack_and_radius(files: list[str], tmp_path: Path) -> None:
    names = list(attacks.ATTACKS)
    lines = run(files, tmp_path / "out.jsonl", "--eps", "0", "0.3", "--steps=2", "--attack", *names)
    assert [(line["name"], line["eps"]) for line in lines] == [
        pair for name in names for pair in ([(name, 1.0)] if name == "radius" else [(name, 0.0), (name, 0.3)])
    ]
    for line in lines:
        assert line["images"] == ["test", 0, LIMIT]
        assert line["samples"] == LIMIT
        if line["eps"] == 0:
            assert line["accuracy"] == line["clean"]
            assert line["mean_distance"] is None
        if "off" not in str(line["name"]) and line["name"] != "sinkhorn":
            assert line["valid"] == 100


def test_what_a_line_says_is_so(files: list[str], tmp_path: Path) -> None:
    [line] = run(files, tmp_path / "out.jsonl", "--eps", "0.3", "--steps=10", "--first=3", "--exact=5")
    images, labels = (column[3 : 3 + LIMIT] for column in zoo.load_sample())
    result = wb.PGD(eps=0.3, steps=10)(zoo.load_model("mnist-standard"), images, labels)
    fooled = int(result.success.sum())
    assert fooled
    assert line["attack"] == result.attack
    assert line["accuracy"] == pytest.approx(100 * result.robust_accuracy())
    assert line["forward"] == int(result.queries.forward.sum())
    assert line["valid_by_exact_transport"] == f"{LIMIT}/{LIMIT}"
    assert line["uint8_valid"] == 100
    assert str(line["uint8_success_kept"]).endswith(f"/{fooled}")


def test_data_is_whatever_the_zoo_loads(files: list[str], tmp_path: Path) -> None:
    options = ["--eps=0", "--steps=1", "--first=195"]
    [line] = run(files, tmp_path / "file.jsonl", *options)
    [bundled] = run(files, tmp_path / "bundle.jsonl", *options, "--data=mnist-sample")
    assert {**bundled, "seconds": line["seconds"]} == line


def test_the_papers_loss_loses_the_slope_of_a_sure_model_and_ours_does_not() -> None:
    logits = torch.tensor([[30.0, 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    label = torch.tensor([0])
    [papers] = torch.autograd.grad(_paper.loss(logits, label).sum(), logits)
    [ours] = torch.autograd.grad(cross_entropy(logits, label).sum(), logits)
    torch.testing.assert_close(papers[0, 1:], ours[0, 1:], rtol=1e-5, atol=0)
    assert papers[0, 0] == 0
    assert ours[0, 0] == pytest.approx(-ours[0, 1:].sum().item())


@pytest.mark.parametrize(
    "option", ["--limit=0", "--first=-1", "--first=200", "--weights=nowhere", "--data=nowhere", "--network=resnet50"]
)
def test_bad_options_are_refused(files: list[str], option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        attacks.main([*files, option])
    name = "--weights" if "network" in option else option.partition("=")[0]
    assert name in capsys.readouterr().err.splitlines()[-1]
