"""The report: what stands in it, what it weighs, what it refuses."""

import html
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wasserball as wb
from wasserball.attacks.result import Queries
from wasserball.evaluate.folder import StoreError
from wasserball.evaluate.health import Finding
from wasserball.evaluate.known import KNOWN, find_known
from wasserball.evaluate.outcomes import read_outcomes
from wasserball.evaluate.plans import SparsePlans
from wasserball.evaluate.report import write_report
from wasserball.evaluate.report.charts import Line, Point, curve, histogram
from wasserball.evaluate.report.verdict import percent
from wasserball.evaluate.rows import make_rows
from wasserball.evaluate.setting import Setting, Unit, fingerprint_model, name_attacks
from wasserball.evaluate.store import Batch, Run
from wasserball.evaluate.summary import summarize, write_summary

HEALTH = (Finding("batches", "pass", "All is the same one by one."), Finding("steps", "warn", "Give it more steps."))


def begin(folder: Path, shape: tuple[int, int, int], samples: int, **changes: Any) -> Run:
    """An empty run."""
    command = changes.pop("command", "wasserball evaluate …")
    setting = Setting(
        model="a model",
        model_fingerprint=None,
        data="some data",
        data_fingerprint="0123",
        samples=samples,
        shape=shape,
        classes=None,
        attacks={"pgd": "PGD(eps=0.0)"},
        costs={},
        eps=(0.1,),
        batch_size=100,
        device="cpu",
    )
    return Run.begin(folder, replace(setting, **changes), command, resume=False)


def finish(run: Run, health: Sequence[Finding] = HEALTH) -> Run:
    """With its summary."""
    write_summary(run, summarize(run, read_outcomes(run), health, dict(torch="2.0", cores=2)))
    return run


def attacked_run(folder: Path) -> Run:
    """Twenty digits, really attacked, with a few steps."""
    model = wb.zoo.load_model("mnist-standard")
    images, labels = (tensor[:20] for tensor in wb.zoo.load_sample())
    labels = labels.clone()
    labels[7] = (labels[7] + 1) % 10  # the model is wrong here from the start
    attacks = name_attacks([wb.PGD(eps=0.0, steps=5), wb.FrankWolfe(eps=0.0, steps=5)])
    changes = dict(model="mnist-standard", model_fingerprint=fingerprint_model(model), eps=(0.2, 0.3), batch_size=10)
    run = begin(folder, (1, 28, 28), 20, attacks={name: repr(attack) for name, attack in attacks.items()}, **changes)
    for unit in run.setting.units():
        chosen = slice(unit.first, unit.last)
        result = replace(attacks[unit.attack], eps=unit.eps)(model, images[chosen], labels[chosen])
        assert result.plan is not None
        assert isinstance(result.cost, wb.LocalCost)
        plans = SparsePlans.pack(result.plan)
        batch = Batch(unit, images[chosen], result.adversarial, plans, result.cost)
        run.write(batch, make_rows(unit, result))
    return finish(run)


def made_up_run(
    folder: Path,
    shape: tuple[int, int, int],
    *,
    samples: int,
    attacks: Sequence[str] = ("pgd", "fw", "auto"),
    eps: Sequence[float] = (0.1, 0.2, 0.3),
    health: Sequence[Finding] = HEALTH,
    planned: bool = True,
    **changes: Any,
) -> Run:
    """Random images that no attack has made, as dense and as hard to compress as they come."""
    names = {"pgd": "PGD", "fw": "FrankWolfe", "auto": "Auto"}
    words = {name: f"{names[name]}(eps=0.0)" for name in attacks}
    run = begin(folder, shape, samples, attacks=words, eps=tuple(eps), **changes)
    generator = torch.Generator().manual_seed(0)
    clean = (255 * torch.rand(samples, *shape, generator=generator)).round() / 255
    for unit in run.setting.units():
        run.write(*made_up_batch(unit, clean[unit.first : unit.last], generator, planned=planned))
    return finish(run, health)


def made_up_batch(unit: Unit, clean: torch.Tensor, generator: torch.Generator, *, planned: bool) -> tuple[Batch, Any]:
    """Noise as an adversarial image, and moves that have nothing to do with it."""
    count = len(clean)
    adversarial = (clean + 0.1 * torch.randn(clean.shape, generator=generator)).clamp(0, 1)
    success = torch.rand(count, generator=generator) < 0.6
    distance = torch.where(success, unit.eps * torch.rand(count, generator=generator), unit.eps).double()
    distance[::7], success[::7] = 0, True  # wrong from the start
    result = wb.AttackResult(
        attack="made up",
        images=clean,
        labels=torch.zeros(count, dtype=torch.long),
        eps=torch.full((count,), unit.eps),
        cost=wb.LocalCost(),
        bounds=(0, 1),
        targeted=False,
        adversarial=adversarial,
        success=success,
        prediction=success.long(),
        on_the_way=success,
        distance=distance,
        mass_error=torch.zeros(count),
        box_error=torch.zeros(count),
        valid=torch.ones(count, dtype=torch.bool),
        loss=torch.randn(count, generator=generator).double(),
        margin=torch.randn(count, generator=generator).double(),
        queries=Queries(torch.ones(count), torch.ones(count)),
        seconds=1.0,
    )
    size = clean[0].numel()
    entries = torch.randint(11 * size, (count, 80), generator=generator)  # moves upwards, one or two pixels
    values = torch.rand(count, 80, generator=generator)
    counts = torch.full((count,), 80)
    plans = SparsePlans((25, *clean.shape[1:]), counts, entries.flatten(), values.flatten()) if planned else None
    return Batch(unit, clean, adversarial, plans, wb.LocalCost()), make_rows(unit, result)


def text_of(page: str) -> str:
    """What can be read in it, without tags, styles, scripts and data."""
    plain = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", plain)))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    folder = tmp_path_factory.mktemp("report")
    run = attacked_run(folder / "run")
    write_report([run], folder / "report.html")
    return run, (folder / "report.html").read_text(encoding="utf-8")


def test_its_figures_are_those_of_the_summary(attacked: tuple[Run, str]) -> None:
    run, page = attacked
    text, summary = text_of(page), run.summary
    for result in [*summary["results"], *summary["worst_case"]]:
        low, high = result["confidence_interval"]
        assert f"{100 * result['robust_accuracy']:.1f}% [{100 * low:.1f}, {100 * high:.1f}]" in text
    first, last = summary["worst_case"]
    assert f"of 20 images survive every attack at eps {first['eps']:g}, " in text
    assert f" at eps {last['eps']:g}; clean {100 * summary['clean_accuracy']:.1f}%." in text
    assert "Read the warnings" in text
    assert "Give it more steps." in text
    assert "All 80 images of this run are certified as valid" in text
    assert "PGD(eps=0.0, steps=5, return_plan=True)" in text


def test_the_paper_is_beside_a_model_it_knows(attacked: tuple[Run, str], tmp_path: Path) -> None:
    _, page = attacked
    assert "paper, PGD valid, eps 0.2: 13.3%" in html.unescape(page)
    assert "Grey: paper, for its own weights of this network" in text_of(page)
    write_report([made_up_run(tmp_path / "run", (1, 8, 8), samples=3)], tmp_path / "report.html")
    assert "paper," not in text_of((tmp_path / "report.html").read_text())


def test_known_models_are_found_by_their_weights() -> None:
    bundled = find_known(fingerprint_model(wb.zoo.load_model("mnist-standard")))
    assert bundled is not None
    assert bundled.note.startswith("paper, for its own weights of this network")
    assert find_known(None) is None
    assert find_known("another") is None
    for known in KNOWN.values():
        assert all(len(published.accuracy) == len(published.eps) for published in known.published)


def test_it_loads_nothing(attacked: tuple[Run, str]) -> None:
    _, page = attacked
    assert set(re.findall(r"https?://[\w./]*", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r'\b(src|href)="(?!#|data:)', page)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in html.unescape(page)


def test_names_and_commands_are_text_and_nothing_else(tmp_path: Path) -> None:
    nasty = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    run = made_up_run(
        tmp_path / "run",
        (1, 8, 8),
        samples=4,
        model=nasty,
        data=nasty,
        classes=(nasty, "two"),
        command=nasty,
        health=[Finding(nasty, "fail", nasty)],
    )
    write_report([run, run], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<img" not in page
    assert nasty in html.unescape(page)
    assert "Do not trust these figures yet" in page
    blocks = re.findall(r'<script type="application/json" id="common-0">(.*?)</script>', page, flags=re.DOTALL)
    assert json.loads(blocks[0])["classes"] == [nasty, "two"]


def test_a_thousand_small_images_nine_times_stay_under_15_megabytes(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", (3, 32, 32), samples=1000)
    write_report([run], tmp_path / "report.html")
    assert 10e6 < (tmp_path / "report.html").stat().st_size < 15e6
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    shown = re.search(r"Here are (\d+) of the 1,000 samples", text_of(page))
    assert shown is not None
    assert int(shown[1]) >= 200  # noise: photographs compress to a third of that


def test_several_runs_are_compared(tmp_path: Path) -> None:
    sizes = {"first": 20, "second": 30}
    runs = [made_up_run(tmp_path / name, (1, 8, 8), samples=count, model=name) for name, count in sizes.items()]
    write_report(runs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    text = text_of(page)
    assert "2 models compared" in text
    assert "Accuracy left by every attack" in text
    assert page.count('class="plot" id="plot') == 4  # every attack, and each of three
    for run in runs:
        for result in run.summary["results"]:
            assert f"{100 * result['robust_accuracy']:.1f}%" in text
        assert f"Certificate. All {9 * run.setting.samples:,} images" in text


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [made_up_run(tmp_path / name, (1, 8, 8), samples=3, eps=(0.1,)) for name in ("one", "two")]
    write_report(runs, tmp_path / "report.html")
    text = text_of((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "a model (one)" in text
    assert "a model (two)" in text


def test_one_attack_one_radius_one_sample(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", (1, 8, 8), samples=1, attacks=("fw",), eps=(0.1,), health=[], planned=False)
    write_report([run], tmp_path / "report.html")
    text = text_of((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "of 1 image survive FrankWolfe at eps 0.1; clean 0.0%." in text
    assert "No health check was run" in text


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", (1, 8, 8), samples=250, eps=(0.1,), attacks=("pgd",))
    lost = run.images(list(run.setting.units())[1])
    lost.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=re.escape(str(lost))):
        write_report([run], tmp_path / "report.html")
    (tmp_path / "elsewhere").rename(lost)
    run.shard(list(run.setting.units())[2]).unlink()
    with pytest.raises(StoreError, match="is not finished"):
        write_report([run], tmp_path / "report.html")
    (run.folder / "summary.json").unlink()
    with pytest.raises(StoreError, match=r"has no summary\.json"):
        write_report([run], tmp_path / "report.html")
    with pytest.raises(ValueError, match="at least one run"):
        write_report([], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("share", "words"), [(0, "0.0%"), (1, "100.0%"), (0.289, "28.9%"), (0.9999, "99.99%"), (0.0002, "0.02%")]
)
def test_a_share_is_never_rounded_to_all_or_nothing(share: float, words: str) -> None:
    assert percent(share) == words


def test_charts_put_things_in_their_place() -> None:
    line = Line("PGD", "colour0", 0, (Point(0.0, 1.0, 0.9, 1.0), Point(0.1, 0.5, 0.4, 0.6), Point(0.2, 0.0, 0.0, 0.1)))
    chart = curve([line], [0.1, 0.2], 700, 400)
    clean, middle, last = chart.lines[0].marks
    assert (clean.x, clean.y) == (chart.left, chart.top)
    assert (last.x, last.y) == (chart.right, chart.bottom)
    assert (middle.x, middle.y) == ((chart.left + chart.right) / 2, (chart.top + chart.bottom) / 2)
    assert middle.tip == "PGD, eps 0.1: 50.0% [40.0, 60.0]"
    assert [tick.text for tick in chart.x_ticks] == ["0", "0.1", "0.2"]
    assert [label.text for label in chart.labels] == ["100.0", "50.0", "0.0"]
    assert [tick.text for tick in curve([line], [0.0], 700, 400).x_ticks] == ["0", "1"]


def test_a_histogram_counts_everything_once() -> None:
    distances = np.array([0.0499, 0.05, 0.1, 0.1])
    chart = histogram(distances, 0.1, 700, 300)
    assert sum(int(bar.tip.split()[0]) for bar in chart.bars) == 4
    tallest = max(chart.bars, key=lambda bar: bar.height)
    assert tallest is chart.bars[-1]
    assert [tick.text for tick in chart.y_ticks] == ["0", "1", "2"]
    assert all(bar.height == 0 for bar in histogram(np.zeros(0), 0.1, 700, 300).bars)
