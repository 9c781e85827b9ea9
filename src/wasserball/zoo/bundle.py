"""What comes with the package: two small trained models and a sample of digits to attack them on."""

from importlib.resources import files

from safetensors.torch import load
from torch import Tensor, nn

from wasserball.zoo.networks import mnist_network

MODELS = {"mnist-standard": mnist_network, "mnist-robust": mnist_network}
SAMPLE = "mnist-sample"


def bundled_model(name: str) -> nn.Module:
    """The paper's network, trained on clean digits, ``"mnist-standard"``, or on attacked ones, ``"mnist-robust"``."""
    network = MODELS[name]()
    network.load_state_dict(_read(name))
    return network


def load_sample() -> tuple[Tensor, Tensor]:
    """The first 200 test digits of MNIST: images float32 ``(200, 1, 28, 28)`` in [0, 1], labels int64 ``(200,)``.

    >>> images, labels = wb.zoo.load_sample()
    >>> images.shape, labels[:5]
    (torch.Size([200, 1, 28, 28]), tensor([7, 2, 1, 0, 4]))
    """
    images, labels = read_sample()
    return images.float() / 255, labels.long()


def read_sample() -> tuple[Tensor, Tensor]:
    """The same as the bytes that they are."""
    sample = _read(SAMPLE)
    return sample["images"], sample["labels"]


def _read(name: str) -> dict[str, Tensor]:
    return load(files("wasserball.zoo").joinpath("bundled", f"{name}.safetensors").read_bytes())
