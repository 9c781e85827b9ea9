"""The paper's Table 3, CIFAR-10: what attacks leave of standard models. The paper's own is not to be had.

A ResNet-18 like the paper's, trained here, and a published ResNet-20.
"""

import sys

from experiments._table3 import (
    DUAL,
    IGNORED_FW,
    IGNORED_PGD,
    REPAIRED_FW,
    REPAIRED_PGD,
    Plan,
    experiment,
    sinkhorn_name,
)
from experiments._victims import CIFAR, CIFAR_RESNET18

PUBLISHED = {
    sinkhorn_name(1 / 3000): (93.0, 91.3, 89.5, 87.6, 85.7),
    sinkhorn_name(1 / 10_000): (89.9, 84.5, 78.3, 71.9, 65.6),
    REPAIRED_PGD: (30.3, 10.5, 5.6, 4.0, 3.4),
    REPAIRED_FW: (33.5, 13.6, 7.2, 4.7, 3.7),
    IGNORED_PGD: (25.9, 6.0, 1.7, 0.5, 0.2),
    IGNORED_FW: (29.6, 9.1, 3.2, 1.1, 0.6),
}
ITERATIONS = DUAL | {sinkhorn_name(1 / 3000): 33, sinkhorn_name(1 / 10_000): 79}

RESNET18 = Plan(CIFAR_RESNET18, samples=1000, published=PUBLISHED, iterations=ITERATIONS)
RESNET20 = Plan(CIFAR, samples=1000, published=PUBLISHED, iterations=ITERATIONS)

EXPERIMENT = experiment(
    "table3-cifar",
    "Table 3, CIFAR-10: accuracies that attacks leave, at eps 0.001 to 0.005.",
    RESNET18,
    RESNET20,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
