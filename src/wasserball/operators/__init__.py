"""The mathematics of the ball, without a model: pure functions on plans and images, on any device."""

from wasserball.operators.baselines import bisection_projection, capacity_projection, entropic_bisection_oracle
from wasserball.operators.box import project_box
from wasserball.operators.box_step import box_step
from wasserball.operators.dykstra import dykstra
from wasserball.operators.oracle import linear_minimizer
from wasserball.operators.projection import project, project_step
from wasserball.operators.sinkhorn import sinkhorn
from wasserball.operators.solution import Solution

__all__ = [
    "Solution",
    "bisection_projection",
    "box_step",
    "capacity_projection",
    "dykstra",
    "entropic_bisection_oracle",
    "linear_minimizer",
    "project",
    "project_box",
    "project_step",
    "sinkhorn",
]
