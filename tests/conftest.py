"""What has to be done once, before the tests are shared among processes."""

from contextlib import suppress

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """ART writes a file into the home folder when it is first imported on a machine, and fails where two processes do
    so at the same time."""
    if not hasattr(config, "workerinput"):  # which pytest-xdist gives its workers
        with suppress(ImportError):
            import art.config  # noqa: F401
