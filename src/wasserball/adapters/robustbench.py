"""RobustBench: a verdict in the shape of its ``model_info`` files, under a threat model of its own."""

import json
from pathlib import Path
from typing import Any

from wasserball.evaluate import Run
from wasserball.evaluate.folder import write_whole

THREAT_MODEL = "Wasserstein"


def model_info(
    run: Run,
    *,
    dataset: str,
    eps: float | None = None,
    name: str | None = None,
    authors: str | None = None,
    link: str | None = None,
    venue: str | None = None,
    architecture: str | None = None,
    additional_data: bool | None = None,
    number_forward_passes: int = 1,
    reported: str | None = None,
    footnote: str | None = None,
) -> dict[str, Any]:
    """What a run found at ``eps``, its only radius by default, as RobustBench would write it.

    Accuracies are in percent. ``autoattack_acc`` is the share that holds against all attacks of the run, so let
    :class:`Auto` be among them. Behind RobustBench's own fields come those that its threat models do not need: what a
    move costs, the attacks, how many images, and the share of them whose certificate holds.
    """
    radii = run.setting.eps
    if eps is None and len(radii) > 1:
        raise ValueError(f"eps must be given for a run with several radii, one of {', '.join(map(str, radii))}")
    radius = radii[0] if eps is None else eps
    rows = [row for row in run.summary["results"] if row["eps"] == radius]
    if not rows:
        raise ValueError(f"eps must be a radius of the run, one of {', '.join(map(str, radii))}, got {eps}")
    worst = next((row for row in run.summary.get("worst_case", ()) if row["eps"] == radius), rows[0])
    return dict(
        link=link,
        name=name or run.summary["model"],
        authors=authors,
        additional_data=additional_data,
        number_forward_passes=number_forward_passes,
        dataset=dataset,
        venue=venue,
        architecture=architecture,
        eps=f"{radius:g}",
        clean_acc=f"{100 * run.summary['clean_accuracy']:.2f}",
        reported=reported,
        autoattack_acc=f"{100 * worst['robust_accuracy']:.2f}",
        footnote=footnote,
        threat_model=THREAT_MODEL,
        cost=sorted({run.setting.costs[row["attack"]] for row in rows}),
        attacks=[run.setting.attacks[row["attack"]] for row in rows],
        number_images=run.summary["samples"],
        valid=f"{100 * min(row['valid_fraction'] for row in rows):.2f}",
    )


def write_model_info(run: Run, folder: str | Path, *, model: str, dataset: str, **about: Any) -> Path:
    """Put :func:`model_info` where RobustBench looks for it: ``folder/dataset/Wasserstein/model.json``."""
    path = Path(folder) / dataset / THREAT_MODEL / f"{model}.json"
    text = json.dumps(model_info(run, dataset=dataset, **about), indent=2, ensure_ascii=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())
    return path
