"""The page that shows what an evaluation came to: one HTML file that needs nothing else."""

from wasserball.evaluate.report.page import write_report

__all__ = ["write_report"]
