"""The rows of a run as the verdict needs them: by attack and radius, in the order of the samples."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wasserball.evaluate.store import Run

if TYPE_CHECKING:
    import pyarrow as pa


class Outcome:
    """What one attack with one radius came to, as numpy columns in the order of the samples."""

    def __init__(self, rows: "pa.Table") -> None:
        plain = (name for name in rows.column_names if name not in ("attack", "queries", "certificate"))
        columns = {name: rows.column(name).to_numpy() for name in plain}
        columns["valid"] = rows.column("certificate").combine_chunks().field("valid").to_numpy(zero_copy_only=False)
        order = np.argsort(columns["index"], kind="stable")
        self.columns = {name: column[order] for name, column in columns.items()}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        column: npt.NDArray[Any] = self.columns[name]
        return column

    def __len__(self) -> int:
        return len(self.columns["index"])

    @property
    def holds(self) -> npt.NDArray[np.bool_]:
        """Which samples the model still gets right."""
        return ~self["success"].astype(bool)

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Which samples the model gets right before the attack."""
        right: npt.NDArray[np.bool_] = self["clean_prediction"] == self["label"]
        return right


Outcomes = dict[tuple[str, float], Outcome]


def read_outcomes(run: Run) -> Outcomes:
    """What was done so far, by attack and radius."""
    done = run.done()
    pairs = dict.fromkeys((unit.attack, unit.eps) for unit in done)
    return {pair: Outcome(run.rows([unit for unit in done if (unit.attack, unit.eps) == pair])) for pair in pairs}
