"""From any model and any images to a verdict: model × data × attacks × radii → run folder → report."""

from wasserball.evaluate.folder import StoreError
from wasserball.evaluate.loop import evaluate
from wasserball.evaluate.store import Run

__all__ = ["Run", "StoreError", "evaluate"]
