"""The demonstration, small: its table says what the images are, and its picture shows images that fool the model."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

import wasserball as wb
from tests.test_plot import shown
from wasserball import cli, demo, zoo

EPS, LIMIT, STEPS = 0.2, 6, 4


Results = dict[str, dict[str, wb.AttackResult]]


@pytest.fixture(scope="module")
def results() -> Results:
    images, labels = (column[:LIMIT] for column in zoo.load_sample())
    return {name: demo.attack(name, images, labels, EPS, STEPS) for name in (demo.STANDARD, demo.ROBUST)}


def test_what_the_table_counts_is_so(results: Results) -> None:
    console = Console(record=True, width=100)
    console.print(demo.table(results, EPS))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in console.export_text().splitlines()]
    lines = iter([line for line in cells if line])
    for name, found in results.items():
        model, (images, labels) = zoo.load_model(name), (column[:LIMIT] for column in zoo.load_sample())
        clean = (model(images).argmax(1) == labels).double().mean()
        assert next(lines) == [name, "none", f"{clean:.1%}", "–", "–", "–"]
        for attack, result in found.items():
            fooled = model(result.adversarial).argmax(1) != labels
            certificate = wb.verify(images, result.adversarial, eps=EPS)
            assert certificate.valid.all()
            distance = float(result.distance[fooled].mean())
            mean = f"{distance:.4f}" if fooled.any() else "–"
            assert next(lines)[:-1] == ["", attack, f"{1 - fooled.double().mean():.1%}", mean, "100%"]
            assert not fooled.any() or float(certificate.distance[fooled].mean()) <= distance + 1e-6 <= EPS + 2e-6
    assert next(lines, None) is None


def test_the_robust_model_holds_where_the_other_does_not(results: Results) -> None:
    standard, robust = (results[name]["Auto"].robust_accuracy() for name in (demo.STANDARD, demo.ROBUST))
    assert robust >= standard + 0.5


def test_the_picture_shows_what_fools_the_model(results: Results) -> None:
    result = results[demo.STANDARD]["PGD"]
    samples = demo.worth_showing(result)
    assert samples
    figure = demo.picture(result, samples)
    count = len(samples)
    assert len(figure.axes) == 3 * count + 1  # and the arrows
    for column, sample in enumerate(samples):
        before, after = figure.axes[column], figure.axes[count + column]
        torch.testing.assert_close(shown(before)[..., 0], result.images[sample, 0].double())
        torch.testing.assert_close(shown(after)[..., 0], result.adversarial[sample, 0].double())
        assert before.get_title() == str(int(result.labels[sample]))
        assert after.get_title() == str(int(result.prediction[sample])) != before.get_title()


def test_each_label_is_shown_before_any_is_shown_twice() -> None:
    labels = torch.tensor([3, 3, 3, 1, 1, 5, 3, 3, 3, 3])
    success = torch.tensor([1, 1, 1, 0, 1, 1, 1, 1, 1, 1]).bool()
    distance = torch.tensor([0.0, *[0.1] * 9])  # the first was wrong all along
    result = SimpleNamespace(labels=labels, success=success, distance=distance)
    assert demo.worth_showing(result) == [1, 2, 4, 5, 6, 7]  # type: ignore[arg-type]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["demo", *arguments])


def test_run_says_what_it_wrote(tmp_path: Path) -> None:
    result = invoke("--limit=3", "--eps=0.5", "--steps=4", f"--out={tmp_path / 'out'}")
    assert result.exit_code == 0
    assert "eps = 0.5" in result.stdout
    assert f"written to {tmp_path / 'out' / 'demo.png'}" in result.stdout
    assert (tmp_path / "out" / "demo.png").stat().st_size > 10_000


def test_no_picture_where_nobody_is_fooled(tmp_path: Path) -> None:
    result = invoke("--limit=1", "--eps=1e-4", "--steps=2", f"--out={tmp_path}")
    assert result.exit_code == 0
    assert "nothing to draw" in result.stdout
    assert not list(tmp_path.iterdir())


def test_interruption_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "attack", interrupted)
    result = invoke(f"--out={tmp_path}")
    assert result.exit_code == 130
    assert "Stopped" in result.stderr


@pytest.mark.parametrize("option", ["--eps=0", "--eps=inf", "--eps=nan", "--limit=0", "--limit=201", "--steps=0"])
def test_bad_options_are_refused(option: str) -> None:
    result = invoke(option)
    assert result.exit_code == 2
    assert option.partition("=")[0] in result.stderr
