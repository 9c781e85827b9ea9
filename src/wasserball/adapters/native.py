"""From the options of an adapter to the attack of wasserball that does the work."""

from collections.abc import Mapping
from typing import Any

from wasserball.attacks import Attack


def make_attack(kind: type[Attack], options: Mapping[str, Any], taken: Mapping[str, str], **given: Any) -> Attack:
    """An attack with ``options`` and what is ``given``; ``taken`` are those that the other package decides, and how."""
    for name, how in taken.items():
        if name in options:
            raise ValueError(f"{name} must not be given to this {kind.__name__}: {how}")
    return kind(**options, **given)
