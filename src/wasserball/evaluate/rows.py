"""The rows of a shard: what an attack came to on each sample."""

from typing import TYPE_CHECKING

import torch

from wasserball.attacks import AttackResult
from wasserball.evaluate.setting import Unit

if TYPE_CHECKING:
    import pyarrow as pa


def make_rows(unit: Unit, result: AttackResult) -> "pa.Table":
    """One row a sample. An attack leaves alone what the model gets wrong by itself, at a distance of 0; all else
    it found to be right. Its time is shared out by the queries."""
    import pyarrow as pa

    already = result.success & (result.distance == 0)
    queries = (result.queries.forward + result.queries.backward).double()
    seconds = result.seconds * queries / queries.sum()
    plain = {
        "index": torch.arange(unit.first, unit.last),
        "label": result.labels,
        "clean_prediction": torch.where(already, result.prediction, result.labels),
        "prediction": result.prediction,
        "success": result.success,
        "on_the_way": result.on_the_way,
        "distance": result.distance,
        "loss": result.loss,
        "margin": result.margin,
        "seconds": seconds,
    }
    structs = {
        "queries": {"forward": result.queries.forward, "backward": result.queries.backward},
        "certificate": {"valid": result.valid, "mass_error": result.mass_error, "box_error": result.box_error},
    }
    count = len(result)
    columns = {
        "attack": pa.array([unit.attack] * count),
        "eps": pa.array([unit.eps] * count, pa.float64()),
    }
    columns |= {name: pa.array(column.cpu().numpy()) for name, column in plain.items()}
    columns |= {
        name: pa.StructArray.from_arrays([pa.array(part.cpu().numpy()) for part in parts.values()], list(parts))
        for name, parts in structs.items()
    }
    return pa.table(columns)
