"""wasserball's attacks as those of other packages, each module with an extra of its name: ``foolbox``, ``art``,
``torchattacks``; and results as RobustBench keeps them."""
