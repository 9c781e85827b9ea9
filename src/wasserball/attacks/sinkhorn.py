"""The attack of Wong, Schmidt & Kolter (2019): sign steps and projected Sinkhorn. A baseline, made honest."""

import warnings
from dataclasses import dataclass

import torch

from wasserball.attacks.attack import Ascent, random_directions
from wasserball.attacks.drill import Drill
from wasserball.attacks.trial import Trial
from wasserball.checks import check_count, check_positive
from wasserball.operators import sinkhorn
from wasserball.operators.rounding import per_sample


@dataclass(frozen=True, kw_only=True, repr=False)
class ProjectedSinkhorn(Ascent):
    """Steps along the sign of the gradient in image space, each followed by an entropic projection onto the ball.

    As its authors do, it ignores the pixel box: the model is shown clamped images on the way and judged on the
    unclamped one, so that results need not be ``valid``. A sample is done as soon as it is fooled; the paper's figures
    for this attack are for the last image, which is weaker. Where numbers overflow, the last image that was found
    before is kept, and a warning says so.

    >>> model = wb.zoo.load_model("mnist-standard")
    >>> images, labels = (tensor[:4] for tensor in wb.zoo.load_sample())
    >>> result = wb.ProjectedSinkhorn(eps=1.0, steps=10)(model, images, labels)
    >>> bool((result.distance <= 1.0).all()), bool(result.valid.all())
    (True, False)
    """

    steps: int = 300
    """As many as in the paper."""
    gamma: float = 1e-3
    """The strength of the entropic regularisation, for images whose mass is 1."""
    step: float = 0.1
    """What a pixel changes by before the projection."""
    max_iterations: int = 500
    """Of the dual, in each projection."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("gamma", self.gamma)
        check_positive("step", self.step)
        check_count("max_iterations", self.max_iterations)

    @property
    def _ignores_box(self) -> bool:
        return True

    def _search(self, trial: Trial, start: int) -> None:
        samples = trial.survivors()
        image, plan = trial.images[samples], trial.cost.identity(trial.images[samples])
        spent = torch.zeros_like(trial.budget)
        overflowed = torch.zeros_like(trial.labels, dtype=torch.bool)
        for number in range(self.steps):
            slope, fooled = trial.slope(image, samples, behind_clamp=True)
            if len(fooled):
                held = trial.strike(samples, plan, fooled)
                samples, image, plan, slope = samples[held], image[held], plan[held], slope.keep(held)
                if len(samples) == 0:
                    break
            direction = slope.direction
            if start and number == 0:
                direction = random_directions(trial.images[samples], self.seed, start)
            found = sinkhorn(
                image + self.step * direction.sign(),
                trial.images[samples],
                trial.budget[samples],
                self.cost,
                gamma=self.gamma,
                max_iterations=self.max_iterations,
                backend=self.backend,
            )
            assert found.plan is not None
            finite = torch.isfinite(found.gap)
            overflowed[samples[~finite]] = True
            image = torch.where(per_sample(finite, image), found.image, image)
            plan = torch.where(per_sample(finite, plan), found.plan, plan)
            spent[samples] = torch.where(finite, found.spent, spent[samples])
            trial.report((number + 1) / self.steps, len(samples))
        if isinstance(trial, Drill):
            trial.take(image, spent)
        elif len(samples):
            trial.offer(samples, plan, settle=True)
        if overflowed.any():
            warnings.warn(
                f"projected Sinkhorn overflowed on {int(overflowed.sum())} of {len(overflowed)} samples with "
                f"gamma={self.gamma:g}: the last image before that was kept",
                RuntimeWarning,
                stacklevel=2,
            )
