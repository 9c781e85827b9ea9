"""The page itself: what it shows of each run, put into one HTML file that needs nothing else."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from wasserball import __version__
from wasserball.evaluate.folder import StoreError, write_whole
from wasserball.evaluate.known import Known, find_known
from wasserball.evaluate.outcomes import Outcomes, read_outcomes
from wasserball.evaluate.report.charts import SIZES, Chart, Line, Point, curve, histogram
from wasserball.evaluate.report.gallery import BUDGET, THUMBNAILS, Gallery, pack_gallery
from wasserball.evaluate.report.verdict import (
    EVERY,
    Row,
    Share,
    Trust,
    attack_name,
    clean_share,
    headline,
    share_of,
    survival,
    table,
    trust,
)
from wasserball.evaluate.store import Run

COLOURS = 6
"""In the style sheet; more lines begin again."""
MARKERS = 4
"""In the template; the last is for what survives every attack."""
DASHES = 5


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Write the page of one run, or one that compares several, to ``path``."""
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    write_whole(Path(path), _render([Shown.of(run, number, runs) for number, run in enumerate(runs)]).encode())


class Figure(NamedTuple):
    """A chart in all its sizes."""

    title: str
    remark: str
    charts: list[Chart]


class Cell(NamedTuple):
    """A line of the comparison: what each model has left, None where it was not attacked so."""

    attack: str
    eps: str
    shares: list[Share | None]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A run as the page shows it."""

    run: Run
    name: str
    summary: dict[str, Any]
    certified: int
    """Of how many images there is a valid certificate, and …"""
    images: int
    """… how many there are."""
    histograms: list[Figure]
    pairs: list[dict[str, str]]
    """Attack and radius of each histogram and of each entry of the gallery."""
    gallery: Gallery

    @classmethod
    def of(cls, run: Run, number: int, runs: Sequence[Run]) -> "Shown":
        """All that is read from the run folder."""
        summary = run.summary
        if run.missing():
            raise StoreError(f"{run.folder} is not finished, resume it")
        outcomes = read_outcomes(run)
        twins = sum(other.setting.model == run.setting.model for other in runs) > 1
        return cls(
            run=run,
            name=f"{run.setting.model} ({run.folder.name or number + 1})" if twins else run.setting.model,
            summary=summary,
            certified=sum(int(outcome["valid"].sum()) for outcome in outcomes.values()),
            images=sum(len(outcome) for outcome in outcomes.values()),
            histograms=_histograms(run, outcomes),
            pairs=[dict(attack=attack_name(run.setting, attack), eps=f"{eps:g}") for attack, eps in outcomes],
            gallery=pack_gallery(run, outcomes, budget=BUDGET // len(runs), thumbnails=THUMBNAILS // len(runs)),
        )

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        return headline(self.run.setting, self.summary)

    @property
    def trust(self) -> Trust:
        """Whether to believe it."""
        return trust(self.summary)

    @property
    def clean(self) -> Share:
        """The accuracy before any attack."""
        return clean_share(self.summary)

    @cached_property
    def survival(self) -> tuple[str, list[tuple[float, Share]]]:
        """Against what, and how many survive it at each radius."""
        return survival(self.run.setting, self.summary)

    @property
    def rows(self) -> list[Row]:
        """Of its table."""
        return table(self.run.setting, self.summary)

    @property
    def known(self) -> Known | None:
        """What the paper says of it."""
        return find_known(self.run.setting.model_fingerprint)

    @property
    def attacks(self) -> dict[str, str]:
        """What each name of an attack stands for."""
        setting = self.run.setting
        return {attack_name(setting, key): words for key, words in setting.attacks.items()}

    @cached_property
    def curves(self) -> dict[str, tuple[Point, ...]]:
        """The points of each attack, and of all together where there are several; all begin with the clean accuracy."""
        points: dict[str, list[Point]] = {name: [Point.of(0.0, self.clean)] for name in self.attacks}
        for result in self.summary["results"]:
            name = attack_name(self.run.setting, result["attack"])
            points[name].append(Point.of(result["eps"], share_of(result)))
        against, shares = self.survival
        points[against] = [Point.of(0.0, self.clean), *(Point.of(eps, share) for eps, share in shares)]
        return {name: tuple(line) for name, line in points.items()}


def _histograms(run: Run, outcomes: Outcomes) -> list[Figure]:
    figures = []
    for (attack, eps), outcome in outcomes.items():
        distances = outcome["distance"]
        moved = distances[~outcome.holds & outcome.correct & (distances > 0)]
        title = f"{attack_name(run.setting, attack)}, eps {eps:g}"
        remark = f"{len(moved):,} of {len(outcome):,} images were moved and fool the model"
        if len(moved):
            remark += f", by {moved.mean():.3g} on average"
        charts = [histogram(moved, eps, width, 0.72 * height) for width, height in SIZES]
        figures.append(Figure(title, f"{remark}.", charts))
    return figures


def _curves(shown: Sequence[Shown]) -> list[tuple[Figure, list[Line]]]:
    """For one run a line an attack; for several a chart an attack, with a line a run."""
    if len(shown) > 1:
        titles = dict.fromkeys(name for one in shown for name in (one.survival[0], *one.curves))
        return [
            _figure(
                f"Accuracy left by {title}",
                [
                    _line(one.name, number, one.curves[title], clean=f"{one.name}, clean")
                    for number, one in enumerate(shown)
                    if title in one.curves
                ],
                [eps for one in shown if title in one.curves for eps in one.run.setting.eps],
            )
            for title in titles
        ]
    (one,) = shown
    radii = one.run.setting.eps
    lines = [_line(name, number, points) for number, (name, points) in enumerate(one.curves.items()) if name != EVERY]
    if EVERY in one.curves:
        lines.append(Line(EVERY, "worst", MARKERS - 1, one.curves[EVERY]))
    return [_figure("", [*_paper(one.known, max(radii)), *lines], radii)]


def _figure(title: str, lines: list[Line], radii: Sequence[float]) -> tuple[Figure, list[Line]]:
    return Figure(title, "", [curve(lines, radii, width, height) for width, height in SIZES]), lines


def _line(name: str, number: int, points: tuple[Point, ...], clean: str = "clean") -> Line:
    return Line(name, f"colour{number % COLOURS}", number % (MARKERS - 1), points, clean)


def _paper(known: Known | None, largest: float) -> list[Line]:
    """The paper's lines as far as the radii of the run go; those that ignore the box are shown on demand."""
    if known is None:
        return []
    lines = []
    for number, published in enumerate(known.published):
        pairs = zip((0.0, *published.eps), (known.clean, *published.accuracy), strict=True)
        points = tuple(Point(eps, accuracy / 100, None, None) for eps, accuracy in pairs if eps <= largest)
        if len(points) > 1:
            kind = "valid" if published.valid else "box ignored"
            style = f"paper dash{number % DASHES}{'' if published.valid else ' extra'}"
            name = f"paper, {published.attack} {kind}"
            lines.append(Line(name, style, number % (MARKERS - 1), points, "paper, clean"))
    return lines


def _compare(shown: Sequence[Shown]) -> list[Cell]:
    tables = [{(row.attack, row.eps): row.accuracy for row in one.rows} for one in shown]
    attacks = list(dict.fromkeys(attack for figures in tables for attack, _ in figures))
    keys = {key for figures in tables for key in figures}
    ordered = sorted(keys, key=lambda key: (attacks.index(key[0]), float(key[1])))
    cells = [Cell("none (clean)", "0", [one.clean for one in shown])]
    return cells + [Cell(*key, [figures.get(key) for figures in tables]) for key in ordered]


def _render(shown: list[Shown]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("wasserball.evaluate.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    assets = files("wasserball.evaluate.report").joinpath("assets")
    names = ("page.css", "page.js", "pictures.js", "gallery.js")
    style, *scripts = (assets.joinpath(name).read_text(encoding="utf-8") for name in names)
    return environment.get_template("page.html.jinja").render(
        shown=shown,
        several=len(shown) > 1,
        curves=_curves(shown),
        cells=_compare(shown),
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        style_hash=_hash(style),
        script_hashes=[_hash(script) for script in scripts],
        version=__version__,
    )


def _hash(text: str) -> str:
    """As a content security policy names an inline element that may be used."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
