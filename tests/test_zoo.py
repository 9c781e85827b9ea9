"""What is bundled is what its card says, networks are the published ones, and idx files are read or refused."""

import gzip
from importlib.resources import files
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wasserball import zoo
from wasserball.zoo.bundle import MODELS
from wasserball.zoo.networks import BasicBlock, Bottleneck

BUNDLED = files("wasserball.zoo").joinpath("bundled")


@pytest.mark.parametrize(("name", "right"), [("mnist-standard", 199), ("mnist-robust", 196)])
def test_the_bundled_models_know_the_bundled_digits(name: str, right: int) -> None:
    model, (images, labels) = zoo.load_model(name), zoo.load_sample()
    assert not any(module.training for module in model.modules())
    assert int((model(images).argmax(1) == labels).sum()) == right
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_each_load_is_a_model_of_its_own() -> None:
    first, second = zoo.load_model("mnist-standard"), zoo.load_model("mnist-standard")
    with torch.no_grad():
        next(first.parameters()).zero_()
    assert next(second.parameters()).any()


def test_an_unknown_model_is_told_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"no model or file 'resnet': .*'mnist-standard', .*cifar-resnet20.*pickle:"):
        zoo.load_model("resnet")


def test_the_sample_is_the_first_test_digits() -> None:
    images, labels = zoo.load_sample()
    assert (images.shape, images.dtype) == ((200, 1, 28, 28), torch.float32)
    assert (labels.shape, labels.dtype) == ((200,), torch.int64)
    assert labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert images.min() == 0
    assert images.max() == 1
    assert torch.equal((images * 255).round() / 255, images)


def test_what_is_bundled_is_small_and_has_a_card() -> None:
    sizes = {item.name: len(item.read_bytes()) for item in BUNDLED.iterdir()}
    models = {f"{name}.safetensors" for name in MODELS}
    assert sizes.keys() == {"README.md", "mnist-sample.safetensors", *models}
    assert all(sizes[model] < 700_000 for model in models)
    assert sizes["mnist-sample.safetensors"] < 160_000
    card = BUNDLED.joinpath("README.md").read_text(encoding="utf-8")
    assert f"{sum(parameter.numel() for parameter in zoo.mnist_network().parameters()):,} parameters" in card


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(("depth", "count"), [(20, 269_722), (56, 853_018)])  # as published
def test_cifar_resnets_are_the_published_ones(depth: int, count: int) -> None:
    network = zoo.cifar_resnet(depth).eval()
    assert parameters(network) == count
    assert sum(isinstance(module, nn.Conv2d | nn.Linear) for module in network.modules()) == depth
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    # Published weights have no counters of batches, and no normalisation.
    weights = {key: value for key, value in network.state_dict().items() if "num_batches" not in key}
    zoo.cifar_resnet(depth).load_state_dict(weights)
    assert {key.partition(".")[0] for key in weights} == {"conv1", "bn1", "layer1", "layer2", "layer3", "linear"}


@pytest.mark.parametrize("depth", [2, 18, -4])
def test_cifar_resnets_have_certain_depths(depth: int) -> None:
    with pytest.raises(ValueError, match=f"depth .* got {depth}"):
        zoo.cifar_resnet(depth)


def test_a_shortcut_without_parameters_pads_channels_on_both_sides() -> None:
    block = BasicBlock(4, 8, stride=2).eval()
    features = torch.rand(1, 4, 6, 6)
    nn.init.zeros_(block.bn2.weight)
    expected = torch.zeros(1, 8, 3, 3)
    expected[:, 2:6] = features[:, :, ::2, ::2]
    assert torch.equal(block(features), expected)


def test_resnet50_is_the_published_one() -> None:
    with torch.device("meta"):
        networks = {"torchvision": zoo.resnet50(), "keras": zoo.resnet50("keras")}
    for convention, network in networks.items():
        assert parameters(network) == 25_557_032
        weights = network.state_dict()
        assert len(weights) == 320
        for key in ("conv1.weight", "layer1.0.downsample.1.running_var", "layer4.2.bn3.bias", "fc.weight"):
            assert key in weights
        assert network(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)
        block, norm = network.get_submodule("layer3.0"), network.get_submodule("bn1")
        assert isinstance(block, Bottleneck)
        assert isinstance(norm, nn.BatchNorm2d)
        strides = [layer.stride[0] for layer in (block.conv1, block.conv2, block.conv3)]
        assert strides == ([1, 2, 1] if convention == "torchvision" else [2, 1, 1])
        assert norm.eps == (1e-5 if convention == "torchvision" else 1e-3)
    with pytest.raises(ValueError, match=r"convention .* got 'caffe'"):
        zoo.resnet50("caffe")  # type: ignore[arg-type]


def test_a_bottleneck_adds_to_its_shortcut() -> None:
    block = Bottleneck(8, 2, eps=1e-5).eval()
    features = torch.rand(1, 8, 5, 5)
    nn.init.zeros_(block.bn3.weight)
    assert torch.equal(block(features), features)
    wider = Bottleneck(4, 2, stride=2, eps=1e-5).eval()
    nn.init.zeros_(wider.bn3.weight)
    assert torch.equal(wider(features[:, :4]), F.relu(wider.downsample(features[:, :4])))


def test_normalize_is_for_each_channel_and_no_weight() -> None:
    layer = zoo.Normalize((0.1, 0.2), (2.0, 4.0))
    images = torch.rand(3, 2, 4, 4)
    expected = torch.stack([(images[:, 0] - 0.1) / 2, (images[:, 1] - 0.2) / 4], 1)
    torch.testing.assert_close(layer(images), expected)
    assert not layer.state_dict()
    with pytest.raises(ValueError, match=r"must have 2 channels .* got \(3, 1, 4, 4\)"):
        layer(images[:, :1])  # would come out with two channels


@pytest.mark.parametrize(("mean", "std"), [((), ()), ((0.5,), (1.0, 1.0)), ((0.5,), (0.0,)), ((float("nan"),), (1.0,))])
def test_normalize_wants_numbers_to_divide_by(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="mean and std"):
        zoo.Normalize(mean, std)


def test_networks_have_names() -> None:
    with torch.device("meta"):
        networks = {name: build() for name, build in zoo.NETWORKS.items()}
    shapes = {"mnist": (1, 28, 28), "cifar-resnet20": (3, 32, 32), "cifar-resnet56": (3, 32, 32)}
    for name, network in networks.items():
        images = torch.empty(1, *shapes.get(name, (3, 224, 224)), device="meta")
        assert network.eval()(images).shape == (1, 1000 if "resnet50" in name else 10)


def idx(tensor: Tensor) -> bytes:
    shape = b"".join(length.to_bytes(4, "big") for length in tensor.shape)
    return bytes([0, 0, 8, tensor.ndim]) + shape + tensor.byte().numpy().tobytes()


DIGITS = torch.randint(256, (300, 28, 28), generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(300) % 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for prefix, count in (("train", 300), ("t10k", 250)):
        for kind, tensor in (("images-idx3", DIGITS), ("labels-idx1", CLASSES)):
            (tmp_path / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx(tensor[:count])))
    return tmp_path


@pytest.mark.parametrize(("split", "count"), [("train", 300), ("test", 250)])
def test_mnist_is_read_gzipped_and_unpacked(folder: Path, split: str, count: int) -> None:
    for _ in range(2):
        images, labels = zoo.load_mnist(folder, split)
        torch.testing.assert_close(images, DIGITS[:count, None] / 255, rtol=0, atol=0)
        assert torch.equal(labels, CLASSES[:count])
        for file in folder.glob("*.gz"):
            file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
            file.unlink()


IMAGES, LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"


@pytest.mark.parametrize(
    ("match", "name", "content"),
    [
        (r"images.*whole gzip file", IMAGES, b"no gzip"),
        (r"images.*whole gzip file", IMAGES, gzip.compress(idx(DIGITS))[:-100]),
        (r"labels.*starts with 00 00 0d 01", LABELS, gzip.compress(b"\0\0\x0d\1" + idx(CLASSES)[4:])),
        (r"labels.*starts with $", LABELS, gzip.compress(b"")),
        (r"images.*must hold 235216 bytes .* got 235215", IMAGES, gzip.compress(idx(DIGITS)[:-1])),
        (r"images.*must hold", IMAGES, gzip.compress(idx(DIGITS)[:6])),
        (r"got images \(250, 28, 28\) and labels \(300,\)", LABELS, gzip.compress(idx(CLASSES))),
        (r"got images \(250,\)", IMAGES, gzip.compress(idx(CLASSES[:250]))),
    ],
    # Compressed content holds the time, which must not get into a name: workers would see different tests.
    ids=[
        "no gzip",
        "cut off",
        "wrong type",
        "empty",
        "a byte short",
        "no sizes",
        "too many labels",
        "labels for images",
    ],
)
def test_a_broken_file_is_named(folder: Path, match: str, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=match):
        zoo.load_mnist(folder)


def test_what_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="split must be one of train, test, got 'validation'"):
        zoo.load_mnist(folder, "validation")
    (folder / LABELS).unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-labels-idx1-ubyte\.gz"):
        zoo.load_mnist(folder)
