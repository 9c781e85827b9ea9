"""The package as a whole: what it needs, which layer imports which, and that all that is public is documented."""

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import wasserball

SOURCE = Path(wasserball.__file__).parent
OPTIONAL = ["ot", "scipy", "matplotlib", "rich", "clarabel", "hypothesis", "numba", "pyarrow", "typer", "jinja2", "PIL"]

# From the bottom up: a layer imports only from itself and from those before it.
LAYERS = [
    *("hardware", "checks", "sums", "threat", "plan", "verify", "kernels", "operators", "solvers"),
    *("attacks", "plot", "zoo", "evaluate", "train", "benchmarks", "adapters", "demo", "cli", "__main__"),
]

MINIMAL = f"""
import sys
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError("blocked: " + name, name=name)

sys.meta_path.insert(0, Blocker())

import torch
import wasserball as wb

cost = wb.LocalCost(3)
mass = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(0))
budget = wb.WassersteinBall(mass, 0.1, cost).budget
projected = wb.operators.project(cost.identity(mass) + 0.1, mass, budget, cost)
assert wb.verify(mass, projected.image, eps=0.1, plan=projected.plan, cost=cost, bounds=None).valid.all()
for method in ("pgd", "frank-wolfe"):
    found = wb.minimize(lambda z: z.square().flatten(1).sum(1), mass, eps=0.1, cost=cost, method=method, steps=20)
    plan = wb.TransportPlan(found.plan, cost)
    assert wb.verify(mass, found.image, eps=0.1, plan=plan, cost=cost, bounds=None).valid.all()
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(25, 3))
labels = model(mass).argmax(1)
for attack in (wb.PGD(eps=0.1, steps=3), wb.Auto(eps=0.1, steps=3), wb.MinimalRadius(steps=3)):
    assert attack(model, mass, labels).valid.all()
loaded = [name for name in {OPTIONAL} if name in sys.modules]
assert not loaded, loaded
print("done")
"""


def test_torch_numpy_and_safetensors_are_enough() -> None:
    environment = os.environ | {"PYTHONPATH": str(SOURCE.parent)}
    run = subprocess.run(
        [sys.executable, "-c", MINIMAL], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.stdout.strip() == "done", run.stderr


def imported_modules(file: Path) -> Iterator[str]:
    """What a file imports, at its top or anywhere else, as absolute names."""
    package = ["wasserball", *file.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            parent = ".".join(filter(None, [base, node.module]))
            # `from wasserball import plan` names a layer in its list.
            yield from (f"{parent}.{name.name}" for name in node.names) if parent == "wasserball" else [parent]


def layers_imported(file: Path) -> set[str]:
    names = (name.split(".") for name in imported_modules(file))
    return {parts[1] if len(parts) > 1 else "" for parts in names if parts[0] == "wasserball"}


FILES = sorted(file for file in SOURCE.rglob("*.py") if file != SOURCE / "__init__.py")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_layers_import_downwards(file: Path) -> None:
    layer = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert layer in LAYERS, "a new layer needs its place in the list"
    own = LAYERS.index(layer)
    assert layers_imported(file) - {"__version__"} <= set(LAYERS[: own + 1])


def test_certificates_share_no_code_with_what_they_judge() -> None:
    used = set.union(*(layers_imported(file) for file in (SOURCE / "verify").rglob("*.py")))
    assert used <= {"checks", "threat", "plan", "verify"}


def test_the_package_is_typed() -> None:
    assert (SOURCE / "py.typed").is_file()


def test_the_version_is_the_one_installed() -> None:
    try:
        installed = metadata.version("wasserball")
    except metadata.PackageNotFoundError:
        pytest.skip("wasserball is imported from its source without being installed")
    assert wasserball.__version__ == installed


PUBLIC = [(module, name) for module in (wasserball, wasserball.operators) for name in module.__all__]


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=lambda value: getattr(value, "__name__", value))
def test_all_that_is_public_is_documented(module: ModuleType, name: str) -> None:
    thing = getattr(module, name)
    assert thing.__doc__
    assert not thing.__doc__.startswith(f"{name}(")  # what a dataclass without a docstring gets for one


@pytest.mark.parametrize("module", [wasserball, wasserball.operators], ids=lambda module: module.__name__)
def test_public_names_exist(module: ModuleType) -> None:
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


OPERATORS = [name for name in wasserball.operators.__all__ if inspect.isfunction(getattr(wasserball.operators, name))]


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_says_first_what_it_solves(name: str) -> None:
    documentation = inspect.getdoc(getattr(wasserball.operators, name)) or ""
    argmin, of_another = r"``arg(min|max)[ _]", r":func:`\w+` of ``"
    assert re.match(f"{argmin}|{of_another}", documentation)
