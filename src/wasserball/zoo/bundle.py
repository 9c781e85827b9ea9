"""What comes with the package: a small trained model and a sample of digits to attack it on."""

from importlib.resources import files

from safetensors.torch import load
from torch import Tensor, nn

from wasserball.zoo.networks import mnist_network

NETWORKS = {"mnist-standard": mnist_network}


def load_model(name: str) -> nn.Module:
    """A bundled model in eval mode on the CPU: ``"mnist-standard"``, the paper's network, trained on clean digits."""
    if name not in NETWORKS:
        raise ValueError(f"name must be one of {', '.join(sorted(NETWORKS))}, got {name!r}")
    network = NETWORKS[name]()
    network.load_state_dict(_read(name))
    return network.eval()


def load_sample() -> tuple[Tensor, Tensor]:
    """The first 200 test digits of MNIST: images float32 ``(200, 1, 28, 28)`` in [0, 1], labels int64 ``(200,)``."""
    sample = _read("mnist-sample")
    return sample["images"].float() / 255, sample["labels"].long()


def _read(name: str) -> dict[str, Tensor]:
    return load(files("wasserball.zoo").joinpath("bundled", f"{name}.safetensors").read_bytes())
