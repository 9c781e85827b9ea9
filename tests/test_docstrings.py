"""The examples in docstrings run and give what they say, each in an empty folder of its own."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest
import torch

import wasserball as wb

MODULES = ["wasserball", *(found.name for found in pkgutil.walk_packages(wb.__path__, "wasserball."))]
"""All modules. Importing ``__main__`` would run the command line; CUDA's are there without a GPU, too."""

SHOWN = [
    *("PGD", "FrankWolfe", "Auto", "MinimalRadius", "ProjectedSinkhorn", "Attack", "AttackResult"),
    *("AttackResult.to_uint8", "AttackResult.save", "verify", "Certificate", "minimize"),
    *("LocalCost", "DenseCost", "WassersteinBall", "TransportPlan"),
    *("evaluate", "Run", "train", "finetune", "Training", "Recipe"),
    *("zoo.load_model", "zoo.load_data", "zoo.load_sample", "zoo.Normalize", "zoo.Data", "plot.moved", "plot.arrows"),
    *(f"operators.{name}" for name in ("Solution", "project", "project_step", "project_box", "box_step")),
    *(f"operators.{name}" for name in ("linear_minimizer", "sinkhorn", "dykstra")),
]
"""The names whose docstring has an example."""


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = {"torch": torch, "wb": wb}  # what the reference says that examples begin with
    found = {
        test.name: test
        for module in MODULES
        if not module.endswith("__main__")
        for test in finder.find(importlib.import_module(module), globs=dict(names))
        if test.examples
    }
    return list(found.values())


EXAMPLES = examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda test: test.name)
def test_an_example_gives_what_it_says(
    example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize("name", SHOWN)
def test_the_main_names_have_an_example(name: str) -> None:
    thing = wb
    for part in name.split("."):
        thing = getattr(thing, part)
    assert ">>> " in (thing.__doc__ or "")
