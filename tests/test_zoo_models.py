"""Models come with the weights they are said to have; what is no model, or would run code, is refused by name."""

import argparse
import os
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from wasserball import zoo

SHARED = Path(__file__).parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
BUNDLED = zoo.load_model("mnist-standard")
WEIGHTS = BUNDLED.state_dict()
DIGITS, CLASSES = zoo.load_sample()


class Malicious:
    """Whoever unpickles this makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


def refuse(match: str, source: str | Path, error: type[Exception] = ValueError, **options: Any) -> str:
    with pytest.raises(error, match=match) as caught:
        zoo.load_model(source, **options)
    return str(caught.value)


def check(model: nn.Module) -> None:
    """It is the bundled model, ready for use."""
    assert not any(module.training for module in model.modules())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    with torch.no_grad():
        torch.testing.assert_close(model(DIGITS), BUNDLED(DIGITS), rtol=0, atol=0.1)  # some weights are halves


FORMS: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "plain": dict,
    "in a checkpoint": lambda weights: {"epoch": 3, "state_dict": weights, "optimizer": {"lr": 0.1}},
    "nested twice": lambda weights: {"model": {"state_dict": weights}},
    "of DataParallel": lambda weights: {f"module.{key}": value for key, value in weights.items()},
    "compiled": lambda weights: {"net": {f"module._orig_mod.{key}": value for key, value in weights.items()}},
    "halves": lambda weights: {key: value.half() for key, value in weights.items()},
    "bfloat16": lambda weights: {key: value.bfloat16() for key, value in weights.items()},
    "doubles": lambda weights: {key: value.double() for key, value in weights.items()},
}


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt", ".pth.tar"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_weights_of_torch_save(form: Callable[[dict[str, Tensor]], object], suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"digits{suffix}"
    torch.save(form(WEIGHTS), file, _use_new_zipfile_serialization=suffix != ".bin")
    check(zoo.load_model(file))
    check(zoo.load_model("mnist", weights=str(file)))
    weights = zoo.load_weights(file)
    assert weights.keys() == WEIGHTS.keys()
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


@pytest.mark.parametrize("form", ["plain", "of DataParallel", "halves"])
def test_weights_of_safetensors(form: str, tmp_path: Path) -> None:
    file = tmp_path / "digits.safetensors"
    save_file(FORMS[form](WEIGHTS), file)  # type: ignore[arg-type]
    check(zoo.load_model(str(file)))
    check(zoo.load_model("mnist", weights=file))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("beside", ["alone", "beside weights", "torch.save", "torch.save, old"])
def test_a_malicious_pickle_does_not_run(beside: str, protocol: int, tmp_path: Path) -> None:
    file, mark = tmp_path / "weights.pt", tmp_path / "mark"
    if "torch.save" in beside:
        torch.save(
            {"state_dict": WEIGHTS, "extra": Malicious(mark)},
            file,
            pickle_protocol=protocol,
            _use_new_zipfile_serialization=beside == "torch.save",
        )
    else:
        content = Malicious(mark) if beside == "alone" else {"a": torch.ones(2), "b": Malicious(mark)}
        file.write_bytes(pickle.dumps(content, protocol))
    for options in (dict(source=str(file)), dict(source="mnist", weights=file)):
        said = refuse(r"weights\.pt does not hold weights alone, but a pickle.* Nothing of it was run", **options)
        assert f"pickle:{file}" in said
        if beside == "torch.save" and protocol == 2:
            assert f"asks for {os.mkdir.__module__}.mkdir" in said
    assert not mark.exists()
    if "torch.save" in beside and protocol == 2:
        check(zoo.load_model(f"pickle:{file}"))  # asked for by name
        assert mark.exists()


class Custom(nn.Module):
    """No network of the zoo."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = zoo.mnist_network()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


def test_whole_models_are_unpickled_by_name_alone(tmp_path: Path) -> None:
    model = Custom()
    model.layers.load_state_dict(WEIGHTS)
    torch.save(model.double().train(), tmp_path / "whole.pt")
    refuse(r"whole\.pt does not hold weights alone, but a pickle that asks for \S*Custom", tmp_path / "whole.pt")
    check(zoo.load_model(f"pickle:{tmp_path / 'whole.pt'}"))
    torch.save({"state_dict": WEIGHTS, "args": argparse.Namespace(rate=0.1)}, tmp_path / "old.pt")
    refuse("asks for argparse.Namespace", "mnist", weights=tmp_path / "old.pt")
    check(zoo.load_model("mnist", weights=f"pickle:{tmp_path / 'old.pt'}"))
    check(zoo.load_model(f"pickle:{tmp_path / 'old.pt'}"))
    (tmp_path / "broken.pt").write_text("no pickle")
    refuse(r"broken\.pt cannot be unpickled", f"pickle:{tmp_path / 'broken.pt'}")
    refuse("there is none called nowhere.pt", "pickle:nowhere.pt", FileNotFoundError)


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    torch.save(WEIGHTS, tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    save_file(WEIGHTS, tmp_path / "whole.safetensors")
    contents = {
        "empty.pt": b"",
        "garbage.pt": b"this is no model at all",
        "picture.pt": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "start.pt": whole[:1000],
        "most.pt": whole[:-100],
        "empty.safetensors": b"",
        "most.safetensors": (tmp_path / "whole.safetensors").read_bytes()[:-10],
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        said = refuse(rf"{name} is no .*, or a part of one", tmp_path / name)
        assert "pickle:" not in said
        refuse(name, "mnist", weights=tmp_path / name)
    for number, other in enumerate((torch.ones(3), {"epoch": 3}, {}, [WEIGHTS])):
        torch.save(other, tmp_path / f"other{number}.pt")
        refuse(rf"other{number}\.pt must hold tensors by name", tmp_path / f"other{number}.pt")
    refuse("there is none called nowhere.pt", "mnist", FileNotFoundError, weights="nowhere.pt")
    refuse("no model or file 'nowhere.pt'", "nowhere.pt")
    (tmp_path / "photo.png").write_bytes(contents["picture.pt"])
    refuse(r"photo\.png is no file of a model: a model must be 'mnist-standard'", tmp_path / "photo.png")
    (tmp_path / "script.py").write_text("")
    refuse(r"script\.py is no file of a model \(did you mean .*script\.py:FUNCTION\?\)", tmp_path / "script.py")
    refuse(f"{tmp_path.name} is no file of a model", tmp_path)


def test_torchscript_is_a_program(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # newer torch is for exporting instead
        torch.jit.save(torch.jit.script(zoo.mnist_network()), str(tmp_path / "program.pt"))
    refuse(r"program\.pt does not hold weights alone, but .*program. Nothing of it was run", tmp_path / "program.pt")


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "w.pt"
    torch.save({key: value for key, value in WEIGHTS.items() if "weight" in key}, file)
    refuse(r"w\.pt do not fit mnist: missing: 0\.bias, 2\.bias, 5\.bias and 1 more$", "mnist", weights=file)
    torch.save(WEIGHTS | {"new": torch.ones(2), "7.bias": torch.ones(4)}, file)
    refuse(r"unexpected: new; of another shape: 7\.bias \(4,\) for \(10,\)$", "mnist", weights=file)
    refuse(r"w\.pt must fit one network, but fits none of mnist, .*file\.py:factory", file)
    refuse("weights must be given for the network mnist", "mnist")
    for source in ("mnist-standard", file):
        torch.save(WEIGHTS, file)
        refuse(f"weights must be left out for {source}", source, weights=file)


def test_networks_are_found_by_their_weights(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    network = zoo.cifar_resnet(20)
    weights = {key: value for key, value in network.state_dict().items() if "num_batches" not in key}
    save_file(weights, file)
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(zoo.load_model(file)(images), network.eval()(images))
    # Both conventions of ResNet-50 have the same keys and shapes; of one number each, it makes a small file.
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in zoo.resnet50().state_dict().items()}
    large = {key: torch.zeros(()).expand(shape) for key, shape in shapes.items()}
    torch.save(large, tmp_path / "large.pt")
    assert (tmp_path / "large.pt").stat().st_size < 500_000
    refuse(r"large\.pt must fit one network, but fits resnet50 and resnet50-keras: name one", tmp_path / "large.pt")
    assert isinstance(zoo.load_model("resnet50-keras", weights=tmp_path / "large.pt"), nn.Sequential)


FACTORY = """
from dataclasses import dataclass
import torch
from beside_model import NETWORK
from wasserball import zoo

@dataclass
class Settings:
    classes: "int" = 10

def build():
    return NETWORK()

def doubled():
    return zoo.load_model("mnist-standard").double().train()

def function():
    model = doubled()
    return lambda images: model(images.double()).float()

model = build()
number = 3

def kind():
    return torch.nn.Linear

def text():
    return "no model"

def trouble():
    raise KeyError("nothing here")

def leave():
    raise SystemExit(1)

class Network(torch.nn.Sequential):
    def __init__(self):
        super().__init__(*build())
"""


@pytest.fixture
def factory(tmp_path: Path) -> Path:
    (tmp_path / "beside_model.py").write_text("from wasserball.zoo import mnist_network as NETWORK\n")
    (tmp_path / "mine_model.py").write_text(FACTORY)
    torch.save(WEIGHTS, tmp_path / "digits.pt")
    return tmp_path / "mine_model.py"


def test_factories(factory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = factory.parent / "digits.pt"
    check(zoo.load_model(f"{factory}:build", weights=weights))
    check(zoo.load_model(f"{factory}:Network", weights=weights))
    check(zoo.load_model(f"{factory}:doubled"))
    model = zoo.load_model(f"{factory}:function")
    assert isinstance(model, nn.Module)
    assert torch.equal(model(DIGITS).argmax(1), BUNDLED(DIGITS).argmax(1))
    refuse("weights must be left out for .*:function", f"{factory}:function", weights=weights)
    monkeypatch.chdir(factory.parent)
    check(zoo.load_model("mine_model:doubled"))
    check(zoo.load_model("mine_model.py:build", weights="digits.pt"))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("nothing", r"nothing in .*mine_model\.py must be a function without arguments, got nothing of that name"),
        ("number", r"must be a function without arguments, got int"),
        ("model", r"model must be a function that returns the model, got a model"),
        ("text", r"mine_model\.py:text must return an nn\.Module or a callable, got str"),
        ("kind", r"got the class Linear"),
        ("trouble", r"trouble in .*mine_model\.py raised KeyError: 'nothing here'"),
        ("leave", r"leave in .*mine_model\.py raised SystemExit: 1"),
    ],
)
def test_factories_that_make_no_model(factory: Path, name: str, match: str) -> None:
    refuse(match, f"{factory}:{name}")


def test_factories_that_cannot_be_imported(factory: Path) -> None:
    factory.write_text("import no_such_package\n")
    refuse(r"mine_model\.py cannot be imported: ModuleNotFoundError: .*no_such_package", f"{factory}:build")
    factory.write_text("def build(:\n")
    refuse(r"mine_model\.py cannot be imported: SyntaxError", f"{factory}:build")
    refuse(r"cannot be imported: FileNotFoundError: there is no file .*other\.py", f"{factory.parent}/other.py:build")
    refuse(r"no_such_package\.models cannot be imported", "no_such_package.models:build")


@pytest.mark.parametrize("normalize", ["mnist", ((0.1307,), (0.3081,))])
def test_normalisation_is_a_layer_in_front(normalize: Any) -> None:
    model = zoo.load_model("mnist-standard", normalize=normalize)
    assert [name for name, _ in model.named_children()] == ["normalize", "model"]
    torch.testing.assert_close(model(DIGITS), BUNDLED((DIGITS - 0.1307) / 0.3081))


@pytest.mark.parametrize(
    ("normalize", "match"),
    [
        ("digits", r"normalize must be one of imagenet, cifar10, mnist or a pair \(mean, std\), got 'digits'"),
        ((0.5,), r"got \(0\.5,\)"),
        ((0.5, 0.5), r"normalize must be a pair of a number for each channel"),
        (((0.5,), (0.0,)), r"std > 0, got \(0\.5,\) and \(0\.0,\)"),
    ],
)
def test_normalisation_that_makes_no_sense(normalize: Any, match: str) -> None:
    refuse(match, "mnist-standard", normalize=normalize)


def test_normalisation_is_not_done_twice(tmp_path: Path) -> None:
    torch.save(zoo.cifar_resnet(20).state_dict(), tmp_path / "w.pt")
    refuse("normalize must be left out for .*w.pt, which normalises by itself", tmp_path / "w.pt", normalize="cifar10")
    with pytest.raises(ValueError, match="must have 3 channels"):
        zoo.load_model("mnist-standard", normalize="imagenet")(DIGITS)


@pytest.mark.parametrize(
    ("source", "weights", "name"),
    [
        ("mnist-standard", None, "mnist-standard"),
        ("/data/mnist_frankwolfe_trained.safetensors", None, "mnist_frankwolfe_trained"),
        ("resnet50", "/tmp/resnet50.safetensors", "resnet50 with resnet50"),
        ("/home/me/my_model.py:build", None, "my_model.py:build"),
        ("../my_model.py:build", Path("/w/best.pth"), "my_model.py:build with best"),
        ("package.module:build", None, "package.module:build"),
        ("timm:resnet18", None, "timm:resnet18"),
        ("torchvision:resnet18", "pickle:/a/b/best.pt", "torchvision:resnet18 with best"),
        ("pickle:/home/me/whole.pt", None, "whole"),
        (Path("/a/w.pt"), None, "w"),
    ],
)
def test_names(source: str | Path, weights: str | Path | None, name: str) -> None:
    assert zoo.model_name(source, weights) == name


@needs_shared
@pytest.mark.parametrize(
    ("name", "right"), [("mnist_standard", 9889), ("mnist_sinkhorn_trained", 9728), ("mnist_frankwolfe_trained", 9583)]
)
def test_the_papers_models(name: str, right: int) -> None:
    model = zoo.load_model(SHARED / "checkpoints" / f"{name}.safetensors")
    data = zoo.load_data(SHARED / "mnist")
    with torch.inference_mode():
        images, labels = data.batch(0, len(data))
        assert int((model(images).argmax(1) == labels).sum()) == right


@needs_shared
@pytest.mark.parametrize("depth", [20, 56])
def test_the_resnets_of_the_experiments(depth: int) -> None:
    file = SHARED / "checkpoints" / f"cifar10_resnet{depth}.safetensors"
    model, named = zoo.load_model(file), zoo.load_model(f"cifar-resnet{depth}", weights=file)
    assert isinstance(model, nn.Sequential)
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(model(images), named(images))
    weights: OrderedDict[str, Tensor] = OrderedDict(zoo.load_weights(file))
    assert all(torch.equal(model.state_dict()[key], value) for key, value in weights.items())


def test_weights_saved_behind_a_normalisation_fit_without_it(tmp_path: Path) -> None:
    plain = zoo.load_model("mnist-standard")
    behind = nn.Sequential(OrderedDict(normalize=zoo.Normalize((0.1,), (0.3,)), model=plain))
    save_file(behind.state_dict(), tmp_path / "weights.safetensors")
    loaded = zoo.load_model("mnist", weights=tmp_path / "weights.safetensors", normalize=((0.1,), (0.3,)))
    images, _ = zoo.load_sample()
    assert torch.equal(loaded(images[:3]), behind(images[:3]))
