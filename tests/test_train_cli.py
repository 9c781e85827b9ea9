"""``wasserball train`` and ``finetune``: what they make of their options, and what they say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import Result

from tests import pupils
from tests.pupils import Steps, record
from wasserball import PGD, FrankWolfe, LocalCost, zoo
from wasserball.cli import train as command
from wasserball.train import RECIPES, Recipe, Training, trainer

SAMPLE = ("--data", "mnist-sample", "--split", "test", "--device", "cpu", "--limit", 90, "--batch-size", 30)
SMALL = ("--held-out", 30, "--steps", 1, "--epochs", 2, "--warm-up", 1)


def train(out: Path, *arguments: object) -> Result:
    return pupils.invoke("train", "--out", out, *SAMPLE, *SMALL, *arguments)


def said(result: Result) -> str:
    return " ".join(result.output.split())


def recipe_of(folder: Path) -> dict[str, Any]:
    recipe: dict[str, Any] = json.loads((folder / "config.json").read_text())["recipe"]
    return recipe


def test_the_command_writes_weights_that_the_zoo_reads(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = train(out, "--eps", 0.2)
    assert result.exit_code == 0, result.output
    assert "robust accuracy" in result.output
    assert "best.safetensors" in result.output
    config = json.loads((out / "config.json").read_text())
    assert config["model"] == "mnist"
    assert config["recipe"]["attack"] == repr(replace(RECIPES["default"].attack, eps=0.2, steps=1))
    assert config["command"].startswith("wasserball")
    weights = load_file(out / "best.safetensors")
    for model in (zoo.load_model("mnist", weights=out / "best.safetensors"), zoo.load_model(out / "best.safetensors")):
        pupils.assert_same_weights(dict(model.state_dict()), weights)

    again = train(out, "--eps", 0.2)
    assert again.exit_code == 1
    assert "resume it (--resume)" in again.output
    other = train(out, "--eps", 0.3, "--resume")
    assert other.exit_code == 1
    assert 'eps=0.3, steps=1)", there' in other.output
    assert train(out, "--eps", 0.2, "--resume").exit_code == 0

    tuned = train(tmp_path / "tuned", "--model", "mnist", "--weights", out / "best.safetensors")
    assert tuned.exit_code == 0, tuned.output
    assert json.loads((tmp_path / "tuned" / "config.json").read_text())["model"] == "mnist with best"


def test_the_command_trains_a_model_of_ones_own(tmp_path: Path) -> None:
    code = "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    (tmp_path / "net.py").write_text(code)
    source = f"{tmp_path / 'net.py'}:build"
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        result = train(tmp_path / name, "--model", source, "--eps", 0.25, "--seed", seed)
        assert result.exit_code == 0, result.output
    one, same, other = (load_file(tmp_path / name / "last.safetensors") for name in ("one", "same", "other"))
    pupils.assert_same_weights(one, same)
    assert not torch.equal(one["model.1.weight"], other["model.1.weight"])
    assert "eps=0.25, steps=1, seed=1" in recipe_of(tmp_path / "other")["attack"]
    zoo.load_model(source, weights=tmp_path / "one" / "best.safetensors")


def test_a_bundled_model_is_finetuned_from_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    steps = Steps()

    def look(model: torch.nn.Module, *rest: Any) -> Any:
        seen.append(next(model.parameters()).detach().clone())
        return steps(model, *rest)

    monkeypatch.setattr(trainer, "objective", look)
    options = ("--epochs", 1, "--steps", 1, "--rate", 1e-4, "--eps", 0.1, "--set", "held_out=30", "--set", "warm_up=0")
    result = pupils.invoke("finetune", "--out", tmp_path / "run", *SAMPLE, *options)
    assert result.exit_code == 0, result.output
    assert torch.equal(seen[0], next(zoo.load_model("mnist-standard").parameters()))
    assert not torch.equal(seen[0], seen[-1])
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model"] == "mnist-standard"
    usual = RECIPES["finetune"].content()
    changed = dict(epochs=1, rate=1e-4, held_out=30, warm_up=0, batch_size=30, attack=config["recipe"]["attack"])
    assert config["recipe"] == usual | changed
    assert "eps=0.1, steps=1" in config["recipe"]["attack"]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """The recipes that commands would have trained with."""
    recipes: list[Recipe] = []

    def note(_model: object, _data: object, *, out: Path, recipe: Recipe, **_: object) -> Training:
        recipes.append(recipe)
        return Training(out, (record(),))

    monkeypatch.setattr(command, "run_training", note)
    return recipes


def ask(out: Path, *arguments: object) -> Result:
    return pupils.invoke("train", "--data", "mnist-sample", "--split", "test", "--out", out, *arguments)


def test_all_that_a_recipe_has_can_be_set(tmp_path: Path, chosen: list[Recipe]) -> None:
    usual = Recipe().content()
    values: dict[str, Any] = dict(radius="own", low=0.1, focus=0.15, stages=3, warm_up=0.5, clean_share=0.5, trades=0.0)
    values |= dict(bounded=0.0, bounded_late=0.0)
    values |= dict(smoothing=0.1, augment="crop-flip", epochs=3, batch_size=7, optimizer="sgd", rate=0.25)
    values |= dict(
        rate_warm_up=1.5, weight_decay=0.125, clip=2.0, leak=0.25, average=0.5, precision="bfloat16", channels_last=True
    )
    values |= dict(replay=True, remember=False, held_out=11, judge_steps=5, patience=4, seed=9)
    assert values.keys() == usual.keys() - {"attack"}
    for recipe in RECIPES:  # whatever types their numbers have
        settings = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        result = ask(tmp_path, "--recipe", recipe, "--attack", "pgd", "--eps", 0.2, *settings)
        assert result.exit_code == 0, result.output
        content = chosen[-1].content()
        assert content | dict(attack=0) == values | dict(attack=0)
        assert all(type(content[name]) is type(value) for name, value in values.items())
    for text, value in (("no", False), ("0", False), ("False", False), ("yes", True), ("1", True), ("TRUE", True)):
        ask(tmp_path, "--set", f"replay={text}")
        assert chosen[-1].replay is value


def test_an_attack_that_remembers_nothing_is_not_asked_to(
    tmp_path: Path, chosen: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECIPES, "remembers", replace(RECIPES["mnist"], remember=True))
    for attack, remembers in (("pgd", True), ("fw", False)):
        assert ask(tmp_path, "--recipe", "remembers", "--attack", attack).exit_code == 0
        assert chosen[-1].remember is remembers


def test_a_smaller_radius_takes_the_focus_along(tmp_path: Path, chosen: list[Recipe]) -> None:
    for eps, focus in ((0.2, 0.2), (0.4, 0.3)):
        ask(tmp_path, "--recipe", "mnist", "--eps", eps)
        assert (chosen[-1].eps, chosen[-1].focus) == (eps, focus)


def test_options_change_the_recipe(tmp_path: Path, chosen: list[Recipe]) -> None:
    ask(tmp_path)
    assert chosen[-1] == RECIPES["default"]
    ask(tmp_path, "--recipe", "paper-mnist")
    assert chosen[-1] == RECIPES["paper-mnist"]
    assert isinstance(chosen[-1].attack, FrankWolfe)
    words = "--recipe sinkhorn-mnist --attack pgd --eps .1 --steps 4 --window 3 --radius grown --low .01 --epochs 3 "
    words += "--batch-size 9 --rate .5 --warm-up .5 --trades 6 --precision bfloat16 --patience 2 --seed 3"
    ask(tmp_path, *words.split())
    recipe = chosen[-1]
    assert recipe.attack == PGD(eps=0.1, steps=4, cost=LocalCost(3), seed=3)
    mine = dict(radius="grown", low=0.01, epochs=3, batch_size=9, rate=0.5, warm_up=0.5, trades=6.0)
    mine |= dict(precision="bfloat16", patience=2, seed=3)
    content = recipe.content()
    assert content == RECIPES["sinkhorn-mnist"].content() | mine | dict(attack=content["attack"])
    ask(tmp_path, "--clean-share", 0.5, "--epochs", 3, "--set", "epochs=4")
    assert (chosen[-1].clean_share, chosen[-1].epochs) == (0.5, 3)
    ask(tmp_path, "--steps", 3)
    assert chosen[-1].attack == replace(RECIPES["default"].attack, steps=3)


def test_a_smaller_radius_and_where_it_grows_from_can_be_chosen_together(tmp_path: Path, chosen: list[Recipe]) -> None:
    start = RECIPES["sinkhorn-mnist"].low / 2
    result = ask(tmp_path, "--recipe", "sinkhorn-mnist", "--eps", start, "--low", start / 2)
    assert result.exit_code == 0, result.output
    assert (chosen[-1].eps, chosen[-1].low) == (start, start / 2)


def test_an_early_end_and_a_collapse_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.show(Training(tmp_path, (record(), record(2)), "no better on the held-out ones for 1 epochs"))
    words = " ".join(capsys.readouterr().out.split())
    assert "Stopped after epoch 2: no better on the held-out ones for 1 epochs." in words
    command.show(Training(tmp_path, (record(collapsed=True),)))
    words = " ".join(capsys.readouterr().out.split())
    assert "Even in the best epoch the model has collapsed" in words
    assert "--warm-up" in words


def test_an_interrupted_command_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    steps.stop = 1
    monkeypatch.setattr(trainer, "objective", steps)
    result = train(tmp_path / "run")
    assert result.exit_code == 130
    assert "the same command with --resume goes on" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--recipe", "best"], 2, "must be one of default, "),
        (["--attack", "auto"], 2, "must be one of fw, pgd, sinkhorn, got 'auto'"),
        (["--device", "tpu"], 2, "must be cpu or cuda"),
        (["--window", "4"], 2, "window"),
        (["--set", "eps=1"], 2, "must be NAME=VALUE with NAME among radius, low"),
        (["--set", "attack=PGD"], 2, "must be NAME=VALUE with NAME among radius, low"),
        (["--set", "network=mnist"], 2, "must be NAME=VALUE with NAME among radius, low"),
        (["--set", "average"], 2, "average must be of type float, got ''"),
        (["--set", "patience=1.5"], 2, "patience must be of type int, got '1.5'"),
        (["--set", "replay=perhaps"], 2, "replay must be of type bool, got 'perhaps'"),
        (["--set", "average=2"], 1, "average must be a number in [0, 1), got 2.0"),
        (["--model", "nothing"], 1, "there is no model or file 'nothing'"),
        (["--warm-up", "3"], 1, "warm_up must be a number from 0 to the 2 epochs"),
        (["--split", "train"], 1, "split of mnist-sample must be test"),
        (["--model", "cifar-resnet18"], 1, "images must have 3 channels to be normalised"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_nonsense_on_the_command_line(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    result = train(tmp_path / "run", *arguments)
    assert result.exit_code == code, result.output
    assert message in said(result).replace("│ ", "").replace(" │", "")
    assert "Traceback" not in result.output
