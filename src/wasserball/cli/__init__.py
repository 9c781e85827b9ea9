"""The command line: ``wasserball COMMAND``, or ``python -m wasserball COMMAND``.

Exit codes: 0, it worked; 1, it did not, or a check failed; 2, the command line makes no sense; 130, it was interrupted.
"""

# Each of these adds its command; their order is that of the help.
from wasserball.cli import demo, attack, evaluate, verify, report, bench, train, reproduce, version  # noqa: F401, I001
from wasserball.cli.app import app

__all__ = ["app"]
