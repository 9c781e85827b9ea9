"""One contract for every fast backend: the answers of the reference in float64, and the promises of an operator."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from tests import emulator
from wasserball import DenseCost, LocalCost, verify
from wasserball.kernels import Backend, _missing, choose, cuda
from wasserball.operators import Solution, box_step, dual, leap, linear_minimizer, project, project_step, sinkhorn
from wasserball.operators.leap import step_that_spends
from wasserball.operators.oracle import mixture


@dataclass(frozen=True)
class Case:
    """Images, a cost and budgets; ``budget`` is relative to the mass of each sample."""

    name: str
    window: int = 5
    shape: tuple[int, ...] = (3, 1, 9, 8)
    look: str = "grey"
    budget: float = 0.02
    metric: Any = "euclidean"
    power: float = 1
    step: float = 0.3
    warm: float | None = None

    @property
    def cost(self) -> LocalCost:
        return LocalCost(self.window, self.metric, self.power)

    def mass(self) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        grey = torch.rand(self.shape, generator=generator, dtype=torch.float64)
        looks = {"grey": grey, "black": 0 * grey, "white": torch.ones_like(grey), "half": (2 * grey - 1).clamp(min=0)}
        looks["mostly"] = (8 * grey - 7).clamp(min=0)
        return looks[self.look].float().double()  # float32 can hold it, so all dtypes see the same problem

    def gradient(self) -> Tensor:
        generator = torch.Generator().manual_seed(2)
        return torch.randn(self.shape, generator=generator, dtype=torch.float32).double()


CASES = [
    *(Case(f"window {window}", window) for window in (1, 3, 5, 7, 9)),
    *(Case(f"{channels} channels", shape=(2, channels, 7, 6)) for channels in (2, 3)),
    Case("one line", shape=(3, 1, 1, 11)),
    Case("one column", 7, shape=(2, 2, 10, 1)),
    Case("one pixel", shape=(2, 1, 1, 1)),
    Case("batch of one", shape=(1, 3, 12, 12)),
    Case("larger than the tiles", shape=(2, 3, 16, 17)),
    Case("black", look="black"),
    Case("half black", look="half"),
    Case("mostly black", look="mostly"),
    Case("white", look="white"),
    Case("free", budget=100.0),
    Case("tiny budget", budget=1e-6),
    Case("no budget", budget=0.0),
    Case("taxicab", metric="l1"),
    Case("chessboard", 7, metric="linf"),
    Case("squared", power=2),
    Case("squared taxicab", 3, metric="l1", power=2),
    Case("long step", step=3.0),
    Case("warm", warm=0.3),
    Case("far too warm", warm=1e6),
]


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    chosen = request.param
    assert isinstance(chosen, Case)
    return chosen


DEVICE: dict[Backend, str] = {"numba": "cpu", "cuda": "cuda"}


@pytest.fixture(params=["numba", "cuda"])
def real_backend(request: pytest.FixtureRequest) -> Backend:
    return available(request.param)


@pytest.fixture(params=["numba", "cuda", "emulated"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Also the CUDA sources on a CPU, which are called "cuda" too."""
    if request.param != "emulated":
        return available(request.param)
    if emulator.COMPILER is None:
        pytest.skip("no emulated cuda: there is no C++ compiler")
    monkeypatch.setitem(DEVICE, "cuda", "cpu")
    monkeypatch.setattr(cuda, "_module", emulator.emulated_module)
    for operator in ("projection", "box_step", "oracle", "leap", "sinkhorn"):
        monkeypatch.setattr(import_module(f"wasserball.operators.{operator}"), "choose", choose_emulated)
    return "cuda"


def available(backend: Backend) -> Backend:
    if (problem := _missing(backend)) is not None:
        pytest.skip(f"no {backend}: {problem}")
    return backend


def choose_emulated(backend: Backend | None, *problem: Any) -> Any:
    return cuda if backend == "cuda" else choose(backend, *problem)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen = request.param
    assert isinstance(chosen, torch.dtype)
    return chosen


@dataclass(frozen=True)
class Problem:
    """A case as a backend gets it and, in float64 on the CPU, as the reference gets it."""

    cost: LocalCost
    mass: Tensor
    gradient: Tensor
    plan: Tensor
    step: Tensor
    budget: Tensor
    lam: Tensor | None

    @classmethod
    def of(cls, case: Case, dtype: torch.dtype, device: str) -> "Problem":
        mass, gradient, cost = case.mass(), case.gradient(), case.cost
        batch = len(mass)
        budget = case.budget * mass.flatten(1).sum(1)
        # A plan on its way, not only the identity.
        sent = project_step(cost.identity(mass), gradient.flip(0), 0.1, mass, 0.5 * budget, cost, backend="torch").plan
        assert sent is not None
        step = case.step * torch.linspace(0.5, 1, batch, dtype=torch.float64)
        lam = None if case.warm is None else torch.full((batch,), case.warm, dtype=torch.float64, device=device)
        mass, gradient, sent = (tensor.to(device, dtype) for tensor in (mass, gradient, sent.float()))
        return cls(cost, mass, gradient, sent, step.to(device), budget.to(device), lam)


def pair(case: Case, dtype: torch.dtype, backend: Backend) -> tuple[Problem, Problem]:
    return Problem.of(case, dtype, DEVICE[backend]), Problem.of(case, torch.float64, "cpu")


def plan_of(solution: Solution) -> Tensor:
    assert solution.plan is not None
    return solution.plan


def close(found: Tensor | None, truth: Tensor | None, atol: float, rtol: float = 0.0) -> None:
    assert found is not None
    assert truth is not None
    torch.testing.assert_close(found.double().cpu(), truth.double(), atol=atol, rtol=rtol)


def noise(dtype: torch.dtype, size: float = 1.0) -> float:
    """A few roundings of numbers of this size."""
    return 16 * torch.finfo(dtype).eps * max(1.0, size)


def check_promises(problem: Problem, solution: Solution) -> None:
    plan, mass, budget, cost = plan_of(solution).cpu(), problem.mass.cpu(), problem.budget.cpu(), problem.cost
    spent, lam = solution.spent.cpu(), solution.lam.cpu()
    assert plan.dtype == solution.image.dtype == mass.dtype
    assert solution.converged.all()
    assert (plan >= 0).all()
    assert not plan.masked_select(~cost.entries(mass)[1].expand_as(plan)).any()
    assert ((cost.row_sums(plan.double()) - mass).abs() <= 16 * torch.finfo(mass.dtype).eps * mass).all()
    assert (spent <= budget).all()
    close(solution.spent, cost.spent(plan, mass), 0.0, 1e-12)
    binding = lam > 0
    assert (spent[binding] >= (1 - 1e-6) * budget[binding]).all()
    assert (solution.gap >= 0).all()
    close(solution.image, cost.scatter(plan.double()), noise(mass.dtype))
    total = mass.double().flatten(1).sum(1)
    eps = torch.where(total > 0, budget / total, 0.0)
    certificate = verify(mass, solution.image.cpu(), eps=eps, plan=plan, cost=cost, bounds=None)
    assert certificate.valid.all(), str(certificate)


def test_project_step(case: Case, dtype: torch.dtype, backend: Backend) -> None:
    mine, truth = pair(case, dtype, backend)
    found, known = (
        project_step(p.plan, p.gradient, p.step, p.mass, p.budget, p.cost, lam=p.lam, backend=b)
        for p, b in ((mine, backend), (truth, "torch"))
    )
    check_promises(mine, found)
    size = case.step * float(truth.gradient.abs().max())
    close(found.plan, known.plan, noise(dtype, size) + 1e-6 * case.budget)
    close(found.image, known.image, 4 * noise(dtype, size) + 1e-5 * case.budget)
    if case.budget > 0:
        close(found.lam, known.lam, noise(dtype, size), 1e-6)


def test_project(case: Case, dtype: torch.dtype, backend: Backend) -> None:
    mine, truth = pair(case, dtype, backend)
    generator = torch.Generator().manual_seed(3)
    target = torch.randn(truth.plan.shape, generator=generator, dtype=torch.float64)
    target = (truth.plan + case.step * target).float()
    found = project(target.to(mine.plan), mine.mass, mine.budget, mine.cost, lam=mine.lam, backend=backend)
    known = project(target.double(), truth.mass, truth.budget, truth.cost, lam=truth.lam, backend="torch")
    check_promises(mine, found)
    size = float(target.abs().max())
    close(found.plan, known.plan, noise(dtype, size) + 1e-6 * case.budget)
    if case.budget > 0:
        close(found.lam, known.lam, noise(dtype, size), 1e-6)


@pytest.mark.parametrize("rounds", [1, 3])
def test_box_step(case: Case, dtype: torch.dtype, backend: Backend, rounds: int) -> None:
    mine, truth = pair(case, dtype, backend)
    lams = torch.linspace(0, 0.4, len(truth.mass), dtype=torch.float64)
    mu = 0.1 * truth.gradient.flip(-1).clamp(min=0).float()
    found, known = (
        box_step(
            *(p.plan, p.gradient, p.step, p.mass, p.budget, p.cost),
            lam=lams.to(p.budget),
            mu=mu.to(p.mass),
            rounds=rounds,
            backend=b,
        )
        for p, b in ((mine, backend), (truth, "torch"))
    )
    size = case.step * float(truth.gradient.abs().max())
    # An update divides by few active entries, and each round builds on the one before.
    atol = (8**rounds) * noise(dtype, size)
    close(found.plan, known.plan, atol)
    close(found.image, known.image, atol)
    close(found.lam, known.lam, atol, 1e-5)
    close(found.mu, known.mu, atol)
    close(found.spent, known.spent, atol * truth.mass[0].numel(), 1e-5)
    assert torch.equal(found.converged.cpu(), known.converged)
    assert torch.equal(found.iterations.cpu(), known.iterations)
    assert torch.isinf(found.gap).all()
    rows = mine.cost.row_sums(plan_of(found).double())
    assert ((rows - mine.mass).abs() <= 16 * torch.finfo(dtype).eps * mine.mass).all()


@pytest.mark.parametrize("gamma", [0.0, 1e-3, 0.3])
@pytest.mark.parametrize("return_plan", [False, True], ids=["image", "plan"])
def test_linear_minimizer(case: Case, dtype: torch.dtype, backend: Backend, gamma: float, return_plan: bool) -> None:
    mine, truth = pair(case, dtype, backend)
    found, known = (
        linear_minimizer(p.gradient, p.mass, p.budget, p.cost, gamma=gamma, return_plan=return_plan, backend=b)
        for p, b in ((mine, backend), (truth, "torch"))
    )
    assert found.converged.all()
    assert (found.spent.cpu() <= truth.budget).all()
    size = (truth.mass * truth.gradient.abs()).flatten(1).sum(1)
    if gamma == 0:
        # Where several plans are best, which one is found is a matter of rounding; what it is worth is not.
        values = [(p.gradient * s.image).double().flatten(1).sum(1).cpu() for p, s in ((mine, found), (truth, known))]
        assert ((values[0] - values[1]).abs() <= noise(dtype) * size).all()
        assert (found.gap.cpu() <= 1e-13 * size).all()
    else:
        close(found.image, known.image, 4 * noise(dtype) + 1e-6 * case.budget)
    if case.budget > 0:
        # The exact oracle compares numbers in float64; the other sums up exponentials, which may be in float32.
        precision = 1e-9 if gamma == 0 else max(1e-9, noise(dtype))
        close(found.lam, known.lam, precision, precision)
        close(found.gap, known.gap, precision * float(size.max()))
    close(found.spent, known.spent, 0.0, 1e-6)
    if return_plan:
        plan, mass = plan_of(found).cpu(), mine.mass.cpu()
        assert (plan >= 0).all()
        assert ((mine.cost.row_sums(plan.double()) - mass).abs() <= 16 * torch.finfo(dtype).eps * mass).all()
        close(found.image, mine.cost.scatter(plan.double()), noise(dtype))
        if gamma > 0:
            close(found.plan, known.plan, noise(dtype) + 1e-6 * case.budget)


@pytest.mark.parametrize("gamma", [0.0, 1e-2])
def test_blend(dtype: torch.dtype, backend: Backend, gamma: float) -> None:
    """All of the way, none of it, a part of it, and the answer on top."""
    mine, _ = pair(Case("blend", shape=(4, 2, 8, 9), look="half"), dtype, backend)
    answer = mixture(mine.gradient, mine.mass, mine.budget, mine.cost, gamma=gamma, backend=backend)
    goal = torch.full_like(mine.plan, torch.nan)
    answer.blend(goal, torch.zeros_like(mine.budget), torch.ones_like(mine.budget))
    assert torch.isfinite(goal).all()  # what was there before is gone
    close(mine.cost.scatter(goal), answer.image.cpu(), noise(dtype))
    keep = torch.tensor([1.0, 0.75, 0.0, 1.0], dtype=torch.float64, device=mine.budget.device)
    share = torch.tensor([0.0, 0.25, 1.0, 3.0], dtype=torch.float64, device=mine.budget.device)
    moved = mine.plan.clone()
    answer.blend(moved, keep, share)
    assert torch.equal(moved[0], mine.plan[0])
    assert torch.equal(moved[2], goal[2])
    close(moved[1], torch.lerp(mine.plan[1].double(), goal[1].double(), 0.25).cpu(), noise(dtype))
    close(moved[3], (mine.plan[3].double() + 3 * goal[3].double()).cpu(), 4 * noise(dtype))


@pytest.mark.parametrize("accuracy", [1e-1, 1e-3])
def test_an_oracle_may_stop_early(case: Case, dtype: torch.dtype, backend: Backend, accuracy: float) -> None:
    mine, truth = pair(case, dtype, backend)
    early = mixture(mine.gradient, mine.mass, mine.budget, mine.cost, accuracy=accuracy, backend=backend)
    best = mixture(truth.gradient, truth.mass, truth.budget, truth.cost, backend="torch")
    assert early.converged.all()
    assert (early.spent <= mine.budget).all()
    assert (early.iterations.cpu() <= best.iterations).all()
    stays, reached, least = (
        (truth.gradient * image.double().cpu()).flatten(1).sum(1) for image in (truth.mass, early.image, best.image)
    )
    slack = noise(dtype) * (truth.mass * truth.gradient.abs()).flatten(1).sum(1)
    assert (early.gap.cpu() <= accuracy * (stays - reached) + slack).all()
    assert (reached - least <= early.gap.cpu() + slack).all()


@pytest.mark.parametrize("gamma", [1e-2, 1e-3])
def test_sinkhorn(case: Case, dtype: torch.dtype, backend: Backend, gamma: float) -> None:
    """All compute in float64, iteration by iteration the same."""
    mine, truth = pair(case, dtype, backend)
    found, known = (
        sinkhorn(p.mass + case.step * p.gradient, p.mass, p.budget, p.cost, gamma=gamma, backend=b)
        for p, b in ((mine, backend), (truth, "torch"))
    )
    assert torch.equal(found.converged.cpu(), known.converged)
    turns = found.iterations.cpu() - known.iterations
    assert (turns.abs() <= (0 if dtype == torch.float64 else 2)).all()  # a target that was rounded is another one
    # Entries are exponentials of numbers that grow like 1 / γ.
    atol = noise(dtype, case.step * float(truth.gradient.abs().max())) + noise(torch.float64) / gamma
    close(found.plan, known.plan, atol)
    close(found.image, known.image, 4 * atol)
    close(found.lam, known.lam, atol, 1e-9 if dtype == torch.float64 else 1e-4)
    close(found.gap, known.gap, atol * truth.mass[0].numel())
    assert (found.spent <= mine.budget).all()


@pytest.mark.parametrize("look", ["grey", "mostly"])
def test_sinkhorn_where_exponentials_are_beyond_all_numbers(backend: Backend, look: str) -> None:
    """With potentials of ten thousand and more, of either sign."""
    gamma, turns = 1e-6, 20
    mine, truth = pair(Case("", look=look), torch.float64, backend)
    found, known = (
        sinkhorn(p.mass + p.gradient, p.mass, p.budget, p.cost, gamma=gamma, max_iterations=turns, backend=b)
        for p, b in ((mine, backend), (truth, "torch"))
    )
    assert (found.iterations == turns).all()
    total = truth.mass.flatten(1).sum(1)
    assert ((truth.mass + truth.gradient - known.image).flatten(1).abs().amax(1) / total / gamma > 10_000).all()
    assert known.gap.isfinite().all()
    close(found.lam, known.lam, 0.0, 1e-8)
    close(found.plan, known.plan, 1e-8)
    close(found.gap, known.gap, 1e-8)


def test_step_that_spends(case: Case, dtype: torch.dtype, backend: Backend) -> None:
    mine, truth = pair(case, dtype, backend)
    found, known = (
        step_that_spends(p.gradient, p.mass, p.budget, 0.75, p.cost, backend=b)
        for p, b in ((mine, backend), (truth, "torch"))
    )
    assert found.dtype == torch.float64
    close(found, known, 0.0, 1e-9)


def everything(problem: Problem, backend: Backend, *, forked: bool = False) -> Iterator[Tensor]:
    """All that the operators answer, tensor by tensor, each with the batch in front. After a fork without projected
    Sinkhorn, part of which is torch's: its threads do not survive that."""
    mass, budget, cost = problem.mass, problem.budget, problem.cost
    target = problem.gradient, mass, budget, cost
    step = problem.plan, problem.gradient, problem.step, mass, budget, cost
    for solution in (
        project_step(*step, backend=backend),
        project(problem.plan, mass, budget / 3, cost, backend=backend),
        *([] if forked else [sinkhorn(*target, gamma=1e-2, backend=backend)]),
        box_step(*step, lam=budget, backend=backend),
        linear_minimizer(problem.gradient, mass, budget, cost, backend=backend),
        linear_minimizer(problem.gradient, mass, budget, cost, gamma=0.1, return_plan=True, backend=backend),
    ):
        values = (getattr(solution, field.name) for field in fields(Solution))
        yield from (value for value in values if value is not None)
    yield step_that_spends(problem.gradient, mass, budget, 0.75, cost, backend=backend)


def test_bits_depend_on_nothing_but_the_sample(dtype: torch.dtype, backend: Backend) -> None:
    whole, _ = pair(Case("bits", shape=(5, 2, 12, 11), look="half"), dtype, backend)
    answers = list(everything(whole, backend))
    for one, other in zip(answers, everything(whole, backend), strict=True):
        assert torch.equal(one, other)  # from run to run
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for one, other in zip(answers, everything(whole, backend), strict=True):
                assert torch.equal(one, other)
    finally:
        torch.set_num_threads(threads)
    for sample in range(5):
        some = [sample]
        mass, gradient, plan = whole.mass[some], whole.gradient[some], whole.plan[some]
        alone = Problem(whole.cost, mass, gradient, plan, whole.step[some], whole.budget[some], None)
        for one, other in zip(answers, everything(alone, backend), strict=True):
            assert torch.equal(one[sample], other[0])


def test_in_place_and_from_any_layout(dtype: torch.dtype, backend: Backend) -> None:
    problem, _ = pair(Case("place", shape=(4, 3, 8, 8)), dtype, backend)
    for operator in (project_step, box_step):
        step = problem.gradient, problem.step, problem.mass, problem.budget, problem.cost
        fresh = operator(problem.plan, *step, backend=backend)
        before = problem.plan.clone()
        assert torch.equal(before, problem.plan)
        here = operator(before, *step, backend=backend, out=before)
        assert here.plan is before
        assert torch.equal(before, plan_of(fresh))
        assert torch.equal(here.image, fresh.image)
        strided = problem.plan.transpose(-1, -2).contiguous().transpose(-1, -2)
        gradient = problem.gradient.contiguous(memory_format=torch.channels_last)
        mass = problem.mass.contiguous(memory_format=torch.channels_last)
        again = operator(strided, gradient, problem.step, mass, problem.budget, problem.cost, backend=backend)
        assert torch.equal(plan_of(again), plan_of(fresh))
        assert torch.equal(again.image, fresh.image)
        assert plan_of(again).is_contiguous()


def test_numbers_of_samples_may_lie_anywhere(backend: Backend) -> None:
    problem, _ = pair(Case("strides"), torch.float32, backend)
    step = problem.plan, problem.gradient, problem.step, problem.mass
    spread = torch.stack([problem.budget, -problem.budget], dim=1)[:, 0]
    assert not spread.is_contiguous()
    one = project_step(*step, problem.budget, problem.cost, backend=backend)
    for validate in (True, False):
        other = project_step(*step, spread, problem.cost, backend=backend, validate=validate)
        assert torch.equal(plan_of(one), plan_of(other))
    whole = torch.tensor(1.0, dtype=torch.float64, device=spread.device)
    assert project_step(*step, whole, problem.cost, backend=backend, validate=False).converged.all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_threads_of_the_cpu_kernels_after_a_fork() -> None:
    available("numba")
    problem, _ = pair(Case("fork", shape=(8, 1, 6, 6)), torch.float32, "numba")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        before = list(everything(problem, "numba", forked=True))
        child = os.fork()
        if child == 0:  # pragma: no cover
            same = all(map(torch.equal, before, everything(problem, "numba", forked=True)))
            os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(threads)


def test_code_of_sources_that_changed_is_not_used_again(tmp_path: Path) -> None:
    available("numba")
    drop = import_module("wasserball.kernels.cpu.layout").drop_stale_code
    (tmp_path / "__pycache__").mkdir()
    source, code = tmp_path / "rows.py", tmp_path / "__pycache__" / "ball.project-1.nbc"
    source.write_text("one")
    drop(tmp_path)
    code.write_text("code of one")
    drop(tmp_path)
    assert code.exists()
    source.write_text("two")
    drop(tmp_path)
    assert not code.exists()


def test_what_fails_in_a_thread_fails_in_the_call() -> None:
    available("numba")
    cpu = import_module("wasserball.kernels.cpu")
    threads = torch.get_num_threads()

    def work(first: int, last: int) -> None:
        if first <= 5 < last:
            raise RuntimeError("sample 5")

    try:
        torch.set_num_threads(2)
        with pytest.raises(RuntimeError, match="sample 5"):
            cpu._share_out(work, 16)
    finally:
        torch.set_num_threads(threads)


# ---------------------------------------------------------------------------------------------- the choice of backend


def test_constants_are_those_of_the_reference() -> None:
    cpu = pytest.importorskip("wasserball.kernels.cpu.ball")
    assert cpu.MAX_EVALUATIONS == dual.MAX_EVALUATIONS
    assert cpu.LEAPS == leap.ITERATIONS
    assert import_module("wasserball.operators.box_step").LEAST_CURVATURE == cpu.LEAST_CURVATURE


def test_an_unknown_backend_is_an_error() -> None:
    mass = torch.ones(1, 1, 2, 2)
    with pytest.raises(ValueError, match="backend must be None or one of torch, numba, cuda, got 'cupy'"):
        project(LocalCost(3).identity(mass), mass, 1.0, LocalCost(3), backend="cupy")  # type: ignore[arg-type]


def test_numba_is_not_for_a_gpu() -> None:
    with pytest.raises(ValueError, match='must fit the device of the tensors, got "numba" for tensors on cuda'):
        choose("numba", LocalCost(3), Mock(device=torch.device("cuda")))


def test_cuda_is_not_for_the_cpu() -> None:
    with pytest.raises(ValueError, match='backend must fit the device of the tensors, got "cuda" for tensors on cpu'):
        choose("cuda", LocalCost(3), torch.ones(1, 1, 2, 2))


def test_windows_too_wide_for_a_thread_are_left_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wasserball.kernels._missing", lambda backend: None)
    image = Mock(device=torch.device("cuda"), dtype=torch.float32)
    for backend in (None, "cuda"):
        assert choose(backend, LocalCost(11), image) is cuda
        assert choose(backend, LocalCost(13), image) is None


def test_a_backend_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wasserball.kernels._missing", lambda backend: "pip install numba")
    mass = torch.ones(1, 1, 2, 2)
    with pytest.raises(ValueError, match='backend must be available, got "numba": pip install numba'):
        choose("numba", LocalCost(3), mass)
    assert choose(None, LocalCost(3), mass) is None  # unasked for, the reference does it


def test_what_only_the_reference_can_do_is_left_to_it(real_backend: Backend) -> None:
    backend, device = real_backend, DEVICE[real_backend]
    mass = torch.rand(2, 4, generator=torch.Generator().manual_seed(0)).to(device)
    cost = DenseCost(1 - torch.eye(4))
    target = cost.identity(mass) + torch.linspace(0, 1, 4, device=device)
    fast = project(target, mass, 0.1, cost, backend=backend)
    assert torch.equal(plan_of(fast), plan_of(project(target, mass, 0.1, cost, backend="torch")))
    image = torch.rand(2, 1, 4, 4, device=device)
    assert choose(backend, LocalCost(3), image, image.double()) is None
    assert choose(backend, LocalCost(3), image, image) is not None
    assert choose("torch", LocalCost(3), image, image) is None
    assert choose(None, LocalCost(3), image, image) is choose(backend, LocalCost(3), image, image)
