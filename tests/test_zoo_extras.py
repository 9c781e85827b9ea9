"""torchvision, Hugging Face and timm through stand-ins: what is asked of them, and what is said if they are missing."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from wasserball import zoo

PICTURE = Image.fromarray(np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3))
EXPECTED = torch.from_numpy(np.asarray(PICTURE).copy()).permute(2, 0, 1) / 255


def install(monkeypatch: pytest.MonkeyPatch, name: str, **contents: object) -> None:
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


def refuse(match: str, load: Any, source: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=match):
        load(source, **options)


@pytest.mark.parametrize(
    ("load", "source", "extra"),
    [
        (zoo.load_data, "torchvision:MNIST", "torchvision"),
        (zoo.load_data, "huggingface:mnist", "huggingface"),
        (zoo.load_model, "torchvision:resnet18", "torchvision"),
        (zoo.load_model, "timm:resnet18", "timm"),
    ],
)
def test_what_is_missing_says_how_to_get_it(
    load: Any, source: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torchvision", "datasets", "timm"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("torchvision.datasets", "torchvision.models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    refuse(rf"cannot be imported .* needs `pip install wasserball\[{extra}\]`", load, source)


class Listed:
    classes: Any = ("cat", "dog")

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return PICTURE, index


class WithTrain(Listed):
    def __init__(self, root: str, train: bool = True, transform: object = None, download: bool = False) -> None:
        self.options = dict(root=root, train=train, download=download)
        made.append(self.options)


class WithSplit(Listed):
    classes = 7

    def __init__(self, root: str, split: str = "train", **_: object) -> None:
        if split not in ("train", "val"):
            raise ValueError(f"Unknown value '{split}' for argument split")
        if root == "/broken":
            raise RuntimeError("Dataset not found or corrupted")
        made.append(dict(root=root, split=split))


class WithNeither(Listed):
    pass


made: list[dict[str, object]] = []


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    install(monkeypatch, "torchvision")
    kinds = dict(WithTrain=WithTrain, WithSplit=WithSplit, WithNeither=WithNeither)
    install(monkeypatch, "torchvision.datasets", **kinds)


@pytest.mark.usefixtures("torchvision")
def test_data_of_torchvision() -> None:
    data = zoo.load_data("torchvision:WithTrain:/some/root")
    assert made.pop() == dict(root="/some/root", train=False, download=True)
    assert (data.name, data.classes, len(data)) == ("WithTrain test", ("cat", "dog"), 2)
    images, labels = data.batch(0, 2)
    assert torch.equal(images[1], EXPECTED)
    assert labels.tolist() == [0, 1]
    zoo.load_data("torchvision:WithTrain", split="train")
    assert made[-1]["train"]
    assert str(made.pop()["root"]).endswith("datasets")
    data = zoo.load_data("torchvision:WithSplit:/some/root", size=4)
    assert made.pop() == dict(root="/some/root", split="val")  # the test split of those who have none
    assert (data.name, data.classes, data[0][0].shape) == ("WithSplit val", None, (3, 4, 4))
    assert zoo.load_data("torchvision:WithNeither").name == "WithNeither"
    refuse("must have a data set called 'Nothing'", zoo.load_data, "torchvision:Nothing")
    refuse(
        "split of torchvision's WithTrain must be train or test", zoo.load_data, "torchvision:WithTrain", split="val"
    )
    refuse(
        "WithSplit cannot be loaded: ValueError: Unknown value 'x'", zoo.load_data, "torchvision:WithSplit", split="x"
    )
    refuse("WithSplit cannot be loaded: RuntimeError: Dataset not", zoo.load_data, "torchvision:WithSplit:/broken")


class Feature:
    pass


class ImageFeature:
    pass


class ClassLabel:
    names = ("cat", "dog")


class Table:
    def __init__(self, **columns: tuple[object, list[Any]]) -> None:
        self.features = {name: feature for name, (feature, _) in columns.items()}
        self.column_names = list(columns)
        self.rows = [
            dict(zip(columns, row, strict=True)) for row in zip(*(r for _, r in columns.values()), strict=True)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


PETS = Table(img=(ImageFeature(), [PICTURE] * 3), kind=(ClassLabel(), [1, 0, None]), text=(Feature(), ["a", "b", "c"]))
TABLES = {
    "hub/pets": PETS,
    "plain": Table(image=(ImageFeature(), [PICTURE]), label=(Feature(), [5])),
    "two": Table(image=(ImageFeature(), [PICTURE]), fine=(ClassLabel(), [5]), coarse=(ClassLabel(), [1])),
    "text": Table(text=(Feature(), ["a"]), label=(ClassLabel(), [1])),
}


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(path: str, name: str | None = None, *, split: str) -> Table:
        if split not in ("train", "validation"):
            raise ValueError(f'Unknown split "{split}"')
        if path not in TABLES:
            raise FileNotFoundError(f"Dataset '{path}' doesn't exist on the Hub")
        made.append(dict(name=name, split=split))
        return TABLES[path]

    made.clear()
    install(monkeypatch, "datasets", load_dataset=load_dataset, Image=ImageFeature, ClassLabel=ClassLabel)


@pytest.mark.usefixtures("datasets")
def test_data_of_hugging_face() -> None:
    data = zoo.load_data("huggingface:hub/pets:small")
    assert made.pop() == dict(name="small", split="validation")
    assert (data.name, data.classes) == ("pets validation", ("cat", "dog"))
    images, labels = data.batch(0, 3)
    assert torch.equal(images[2], EXPECTED)
    assert labels.tolist() == [1, 0, -1]
    assert zoo.load_data(PETS).name == "Table"
    data = zoo.load_data("huggingface:plain", split="train")
    assert made.pop() == dict(name=None, split="train")
    assert (data.classes, data[0][1]) == (None, 5)
    refuse(
        "two validation must have one .* of labels, got image: .*, fine: ClassLabel", zoo.load_data, "huggingface:two"
    )
    refuse("must have one column of images", zoo.load_data, "huggingface:text")
    refuse("nowhere cannot be loaded: FileNotFoundError: .* doesn't exist", zoo.load_data, "huggingface:nowhere")
    refuse('cannot be loaded: ValueError: Unknown split "x"', zoo.load_data, "huggingface:plain", split="x")


MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)


def linear(weight: float) -> nn.Module:
    layer = nn.Linear(12, 2)
    nn.init.constant_(layer.weight, weight)
    return nn.Sequential(nn.Flatten(), layer)


def create_model(name: str, pretrained: bool) -> nn.Module:
    if name != "toy":
        raise RuntimeError(f"Unknown model ({name})")
    return linear(1.0 if pretrained else 0.0)


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(resolve_model_data_config=lambda model: dict(mean=MEAN, std=STD, input_size=(3, 2, 2)))
    install(monkeypatch, "timm", create_model=create_model, data=config)
    transforms = {
        "toy": SimpleNamespace(mean=MEAN, std=STD),
        "detector": SimpleNamespace(),
        "nothing": SimpleNamespace(mean=MEAN, std=STD),
    }
    install(monkeypatch, "torchvision")
    install(
        monkeypatch,
        "torchvision.models",
        get_model=lambda name, weights: create_model(name, weights is not None),
        get_model_weights=lambda name: SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: transforms[name])),
    )


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_models_of_others(package: str, tmp_path: Any) -> None:
    model = zoo.load_model(f"{package}:toy")
    assert [name for name, _ in model.named_children()] == ["normalize", "model"]
    assert not model.training
    images = torch.rand(4, 3, 2, 2)
    normalized = (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(model(images), model.get_submodule("model")(normalized))
    assert model.state_dict()["model.1.weight"].eq(1).all()
    torch.save(linear(2.0).state_dict(), tmp_path / "w.pt")
    own = zoo.load_model(f"{package}:toy", weights=tmp_path / "w.pt", normalize=((0.0,) * 3, (1.0,) * 3))
    assert own.state_dict()["model.1.weight"].eq(2).all()
    normalize = own.get_submodule("normalize")
    assert isinstance(normalize, zoo.Normalize)
    assert not normalize.mean.any()
    refuse(f"{package}:nothing cannot be loaded: ", zoo.load_model, f"{package}:nothing")


@pytest.mark.usefixtures("packages")
def test_a_detector_is_no_classifier() -> None:
    refuse("torchvision:detector must be a classifier of images", zoo.load_model, "torchvision:detector")
