"""Data and models: from whatever a user has to what attacks take, and a bundle for a first one without a download."""

from wasserball.zoo.bundle import load_sample
from wasserball.zoo.data import Data
from wasserball.zoo.idx import load_mnist
from wasserball.zoo.models import load_model, model_name
from wasserball.zoo.networks import NETWORKS, Normalize, cifar_resnet, cifar_resnet18, mnist_network, resnet50
from wasserball.zoo.sources import load_data
from wasserball.zoo.weights import load_weights

__all__ = [
    "NETWORKS",
    "Data",
    "Normalize",
    "cifar_resnet",
    "cifar_resnet18",
    "load_data",
    "load_mnist",
    "load_model",
    "load_sample",
    "load_weights",
    "mnist_network",
    "model_name",
    "resnet50",
]
