"""From any model and any images to a verdict: model × data × attacks × radii → run folder → report."""

from wasserball.evaluate.loop import evaluate
from wasserball.evaluate.store import Run, StoreError

__all__ = ["Run", "StoreError", "evaluate"]
