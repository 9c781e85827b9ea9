"""Networks, data and what is bundled: enough for a first attack without a download."""

from wasserball.zoo.bundle import load_model, load_sample
from wasserball.zoo.idx import load_mnist
from wasserball.zoo.networks import Normalize, cifar_resnet, mnist_network, resnet50

__all__ = [
    "Normalize",
    "cifar_resnet",
    "load_mnist",
    "load_model",
    "load_sample",
    "mnist_network",
    "resnet50",
]
