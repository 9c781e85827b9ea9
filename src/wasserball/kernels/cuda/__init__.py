"""Kernels for NVIDIA GPUs: CUDA C, specialised to a cost and a dtype, one launch an operator, no wait for the host."""

from functools import cache
from importlib.resources import files

import torch
from torch import Tensor

from wasserball.kernels.cuda.nvrtc import THREADS, WARPS, Argument, Module, Shape
from wasserball.kernels.interface import Boxed, Mixture, Projected, SinkhornDual
from wasserball.threat import LocalCost

TOTALS = 11
"""Numbers that a sum over rows consists of, at most; the sources have the same number."""


def project(
    plan: Tensor,
    gradient: Tensor | None,
    step: Tensor | None,
    mass: Tensor,
    budget: Tensor,
    cost: LocalCost,
    lam: Tensor | None,
    tol: float,
    out: Tensor | None,
) -> Projected:
    """See :class:`wasserball.kernels.interface.Kernels`."""
    # A projection is a step of length 0, along anything.
    if gradient is None or step is None:
        gradient, step = mass, torch.zeros_like(budget)
    start = torch.zeros_like(budget) if lam is None else lam
    plan, gradient, mass = plan.contiguous(), gradient.contiguous(), mass.contiguous()
    out = torch.empty_like(plan) if out is None else out
    found = Projected(out, torch.empty_like(mass), *_state(budget))
    inputs: list[Argument] = [plan, gradient, step, mass, budget, start, float(tol)]
    _solve("project", "project", cost, mass, [*inputs, torch.empty_like(mass), *found])
    return found


def box_step(
    plan: Tensor,
    gradient: Tensor,
    step: Tensor,
    mass: Tensor,
    budget: Tensor,
    cost: LocalCost,
    high: float,
    lam: Tensor,
    mu: Tensor,
    rounds: int,
    out: Tensor | None,
) -> Boxed:
    """See :class:`wasserball.kernels.interface.Kernels`."""
    plan, gradient, mass, mu = (tensor.contiguous() for tensor in (plan, gradient, mass, mu))
    out = torch.empty_like(plan) if out is None else out
    new_lam, spent, _, converged, _ = _state(budget)
    found = Boxed(out, torch.empty_like(mass), new_lam, torch.empty_like(mass), spent, converged)
    inputs: list[Argument] = [plan, gradient, step, mass, budget, float(high), rounds, lam, mu]
    scratch: list[Argument] = [torch.empty_like(mass), torch.empty_like(mass)]
    _solve("box", "box_step", cost, mass, [*inputs, *scratch, *found])
    return found


def exact_oracle(gradient: Tensor, mass: Tensor, budget: Tensor, cost: LocalCost, accuracy: float) -> Mixture:
    """See :class:`wasserball.kernels.interface.Kernels`."""
    gradient, mass = gradient.contiguous(), mass.contiguous()
    moves = torch.empty_like(mass, dtype=torch.int32)
    image, share = torch.empty_like(mass), torch.empty_like(budget)
    state = _state(budget)
    inputs: list[Argument] = [gradient, mass, budget, float(accuracy), torch.empty_like(mass)]
    _solve("exact", "exact_oracle", cost, mass, [*inputs, moves, image, *state, share])

    def blend(plan: Tensor, keep: Tensor, weight: Tensor) -> None:
        _blend("exact", "blend_vertices", cost, plan, mass, [moves, share, mass, keep, weight])

    return Mixture(image, *state, blend)


def entropic_oracle(
    gradient: Tensor, mass: Tensor, budget: Tensor, cost: LocalCost, gamma: float, tol: float
) -> Mixture:
    """See :class:`wasserball.kernels.interface.Kernels`."""
    gradient, mass = gradient.contiguous(), mass.contiguous()
    totals, low_totals = (torch.empty_like(mass, dtype=torch.float64) for _ in range(2))
    scales, image = torch.empty_like(mass), torch.empty_like(mass)
    low, share = torch.empty_like(budget), torch.empty_like(budget)
    state = _state(budget)
    inputs: list[Argument] = [gradient, mass, budget, float(gamma), float(tol)]
    rows: list[Argument] = [totals, low_totals, scales]
    _solve("entropic", "entropic_oracle", cost, mass, [*inputs, *rows, image, *state, low, share])

    def blend(plan: Tensor, keep: Tensor, weight: Tensor) -> None:
        mixed: list[Argument] = [gradient, mass, float(gamma), state[0], low, share, *rows, keep, weight]
        _blend("entropic", "blend_rows", cost, plan, mass, mixed)

    return Mixture(image, *state, blend)


def step_that_spends(gradient: Tensor, mass: Tensor, wanted: Tensor, share: float, cost: LocalCost) -> Tensor:
    """See :class:`wasserball.kernels.interface.Kernels`."""
    # In float64, whatever is given: once an attack it does not matter, and steps a million times the mass occur.
    step, gradient, mass = torch.empty_like(wanted), gradient.double().contiguous(), mass.double().contiguous()
    inputs: list[Argument] = [gradient, mass, wanted, float(share)]
    _solve("leap", "step_that_spends", cost, mass, [*inputs, step])
    return step


def ascend_sinkhorn(
    target: Tensor, mass: Tensor, budget: Tensor, cost: LocalCost, gamma: float, tol: float, max_iterations: int
) -> SinkhornDual:
    """See :class:`wasserball.kernels.interface.Kernels`."""
    target, mass, beta = target.contiguous(), mass.contiguous(), torch.empty_like(mass)
    psi, objective, iterations, converged, _ = _state(budget)
    inputs: list[Argument] = [target, mass, budget, float(gamma), float(tol), max_iterations]
    powers = [torch.empty_like(mass, dtype=dtype) for dtype in (torch.float64, torch.int32) * 2]
    found = SinkhornDual(beta, psi, objective, iterations, converged)
    _solve("sinkhorn", "ascend_sinkhorn", cost, mass, [*inputs, *powers, *found])
    return found


def specialised(source: str, cost: LocalCost, dtype: torch.dtype) -> str:
    """The text of a source for one cost and one dtype."""
    shell_of = {k: number for number, (_, members) in enumerate(cost.shells) for k in members}
    definitions = (
        f"typedef {'float' if dtype == torch.float32 else 'double'} real;",
        f"#define WINDOW {cost.window}",
        f"#define SHELLS {len(cost.shells)}",
        f"#define PRICES {', '.join(float(price).hex() for price, _ in cost.shells)}",
        f"#define SHELL_OF {', '.join(str(shell_of[k]) for k in range(len(cost.offsets)))}",
    )
    folder = files(__package__)
    names = "common.cuh", f"{source}.cu"
    texts = (folder.joinpath(name).read_text(encoding="utf-8") for name in names)
    return "\n".join((*definitions, *texts))


@cache
def _module(source: str, cost: LocalCost, dtype: torch.dtype, device: torch.device) -> Module:
    return Module(specialised(source, cost, dtype), device)


def _solve(source: str, kernel: str, cost: LocalCost, mass: Tensor, arguments: list[Argument]) -> None:
    """One launch in which blocks share a sample where there are fewer samples than blocks that the device can hold."""
    module = _module(source, cost, mass.dtype, mass.device)
    batch, channels, height, width = mass.shape
    rows = channels * height * width
    if rows * len(cost.offsets) >= 2**31:  # which the kernels count in 32 bits
        raise ValueError(f"mass must have plans of fewer than 2**31 entries a sample, got shape {tuple(mass.shape)}")
    # Rows that a warp sums up: fewer make for more warps, more for fuller ones. It must depend on the shape alone.
    chunk = 128 if rows < 2**14 else 256
    chunks = -(-rows // chunk)
    members = max(1, min(-(-chunks // WARPS), module.resident(kernel) // batch))
    groups = batch if members == 1 else min(batch, module.resident(kernel) // members)
    together = members > 1
    arrivals = (torch.zeros if together else torch.empty)(groups, dtype=torch.int32, device=mass.device)
    partials = torch.empty(groups * 2 * chunks * TOTALS, dtype=torch.float64, device=mass.device)
    shape = Shape(batch, channels, height, width, chunk, groups, members)
    module.launch(kernel, groups * members, [shape, arrivals, partials, *arguments], together=together)


def _blend(source: str, kernel: str, cost: LocalCost, plan: Tensor, mass: Tensor, arguments: list[Argument]) -> None:
    """One launch with a thread for each row."""
    assert plan.is_contiguous()
    assert plan.dtype == mass.dtype
    batch, channels, height, width = mass.shape
    module = _module(source, cost, mass.dtype, mass.device)
    blocks = batch * -(-channels * height * width // THREADS)
    module.launch(kernel, blocks, [Shape(batch, channels, height, width, 1, 1, 1), *arguments, plan])


def _state(budget: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Empty columns for λ, what is spent, evaluations, convergence and gap."""
    lam, spent, gap = budget.new_empty(3, len(budget)).unbind()
    return lam, spent, torch.empty_like(budget, dtype=torch.int64), torch.empty_like(budget, dtype=torch.bool), gap
