"""Adversarial training, epoch after epoch, into a folder."""

import os
import time
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wasserball.checks import check_count
from wasserball.evaluate.folder import StoreError, locked
from wasserball.evaluate.loop import check_fit
from wasserball.evaluate.setting import fingerprint_data
from wasserball.evaluate.workers import join_workers
from wasserball.train.average import Average
from wasserball.train.board import Board
from wasserball.train.folder import Folder, State
from wasserball.train.held_out import HeldOut
from wasserball.train.history import Epoch, Training, reason_to_stop
from wasserball.train.memory import Memory
from wasserball.train.objective import Cast
from wasserball.train.parallel import backend_for, together
from wasserball.train.progress import Watch, watching
from wasserball.train.radius import OwnRadii
from wasserball.train.recipe import Recipe, choose_recipe
from wasserball.train.samples import Samples, split
from wasserball.train.setting import Setting
from wasserball.train.trainer import Trainer, make_optimizer, naming
from wasserball.zoo import Data, load_data


def train(
    model: nn.Module,
    data: Any,
    *,
    out: str | os.PathLike[str],
    recipe: str | Recipe = "default",
    limit: int | None = None,
    device: str | torch.device | None = None,
    readers: int = 0,
    resume: bool = False,
    progress: bool = False,
    name: str | None = None,
    command: str | None = None,
    **changes: Any,
) -> Training:
    """Train ``model``, in place, on the images that an attack makes of ``data`` as it goes (Madry et al. 2018).

    ``data`` is what :func:`zoo.load_data` understands, its split ``"train"`` where it has several, of which ``limit``
    takes the first so many samples. ``recipe`` is a :class:`Recipe` or the name of one, and ``changes`` are what is to
    be different: ``train(model, data, out="run", attack=wb.FrankWolfe(eps=0.3, steps=10), epochs=5)``.

    After each epoch PGD with the full radius attacks samples that were held out: the weights that hold best are
    ``best.safetensors`` in ``out``, and what the model is left with. A training ends early where the model has
    collapsed, or where nothing has become better for a while (``patience``), and says so.

    What is finished stays: with ``resume`` a training that was stopped goes on after its last finished epoch, with the
    weights in the folder, and on a CPU ends with the bits with which it would have ended. A loss that is not finite,
    or that explodes, is a ``ValueError``. Under ``torchrun`` each process takes its part of every batch.

    ``readers`` are processes that read images which are not in memory. ``name`` and ``command`` are for
    ``config.json``.

    >>> data = wb.zoo.load_data("mnist-sample")
    >>> model, attack = wb.zoo.mnist_network(), wb.PGD(eps=0.1, steps=2)
    >>> training = wb.train(model, data, out="run", attack=attack, epochs=1, held_out=20, limit=60)
    >>> len(training.history), training.weights.name
    (1, 'best.safetensors')
    """
    chosen = choose_recipe(recipe, changes)
    parameters = _parameters(model)
    if limit is not None:
        check_count("limit", limit)
    images = data if isinstance(data, Data) else load_data(data, split="train")
    taken = len(images) if limit is None else min(limit, len(images))
    place = parameters[0].device if device is None else torch.device(device)
    setting = Setting(
        model=name or type(model).__name__,
        data=images.name,
        data_fingerprint=fingerprint_data(images, taken)[0],
        samples=taken - chosen.held_out,
        recipe=chosen.content(),
        device=place.type,
    )
    mine, held = split(taken, chosen.held_out)
    model.to(place)
    classes = _classes(check_fit(model, images, place))
    cast = Cast(model, chosen, place)
    samples, others = (Samples.of(images, numbers, place, classes, readers) for numbers in (mine, held))
    folder = Folder(out)
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    with ExitStack() as stack:
        workers = stack.enter_context(join_workers(backend_for(place)))
        if (smallest := setting.samples // setting.steps) < workers.count:
            raise ValueError(f"batch_size must be at least the {workers.count} processes, got batches of {smallest}")
        stack.enter_context(locked(out, wanted=workers.leads))
        watch = stack.enter_context(watching(setting, progress and workers.leads))
        judge = HeldOut(samples=others, judge=chosen.judge, batch_size=max(chosen.batch_size, 64), workers=workers)
        judge.check()
        words = command or f"wb.train({setting.model}, {images.name!r}, …)"
        workers.first(partial(folder.begin, setting, words, resume=resume or restarted))
        if not folder.config.exists():
            raise StoreError(f"{out} must be a folder that all workers share, worker {workers.rank} does not see it")
        board = stack.enter_context(Board(folder.path) if workers.leads else nullcontext())
        if cast.leak is not None:
            stack.enter_context(cast.leak.installed())
        model.to(memory_format=cast.layout)  # type: ignore[call-overload]
        stack.callback(partial(model.to, memory_format=torch.contiguous_format))
        trainer = Trainer(
            model=cast,
            learner=stack.enter_context(together(cast, workers)),
            optimizer=make_optimizer(parameters, chosen),
            average=Average(model, chosen.average) if chosen.average else None,
            radii=OwnRadii(len(samples), chosen.low, chosen.eps, place) if chosen.radius == "own" else None,
            memory=Memory(len(samples), samples.shape, place) if chosen.remember else None,
            recipe=chosen,
            setting=setting,
            samples=samples,
            workers=workers,
        )
        history = _work(model, trainer, judge, folder, watch, board)
        stopped = _reason(history, chosen) if len(history) < chosen.epochs else None
        training = Training(folder.path, history, stopped)
        training.load_best(model)
    return training


def finetune(model: nn.Module, data: Any, *, out: str | os.PathLike[str], **options: Any) -> Training:
    """Make a model that was trained on clean images robust, in a few epochs: :func:`train` with the recipe
    ``"finetune"``, a low rate and a radius that grows from 0, and with whatever ``options`` it takes.

    >>> data = wb.zoo.load_data("mnist-sample")
    >>> model, attack = wb.zoo.load_model("mnist-standard"), wb.PGD(eps=0.1, steps=2)
    >>> training = wb.finetune(model, data, out="run", attack=attack, epochs=1, held_out=20, limit=60)
    >>> training.best.epoch
    1
    """
    return train(model, data, out=out, **dict(recipe="finetune") | options)


def _work(
    model: nn.Module, trainer: Trainer, others: HeldOut, folder: Folder, watch: Watch, board: Board | None
) -> tuple[Epoch, ...]:
    """All epochs that are not finished yet; returns the whole history."""
    recipe, setting, workers = trainer.recipe, trainer.setting, trainer.workers
    state = State(model, trainer.optimizer, trainer.average, trainer.radii, trainer.memory)
    if workers.leads and not folder.last.exists():
        folder.save(state, ())
    workers.wait()
    history = folder.restore(state, derive=workers.leads)
    workers.wait()
    for record in history:
        watch.finish(record)
    while len(history) < recipe.epochs and _reason(history, recipe) is None:
        epoch = len(history) + 1
        started = time.perf_counter()
        try:
            tally = trainer.run(epoch, watch)
            with naming(f"epoch {epoch}, held-out samples"), state.judged():
                score = others.measure(model)
        except ValueError as error:
            folder.restore(state, derive=False)
            raise ValueError(f"{error} (model and {folder.last} are as they were after epoch {epoch - 1})") from error
        last = epoch * setting.steps - 1
        record = Epoch(
            epoch=epoch,
            loss=tally.loss,
            train_robust_accuracy=tally.robust_accuracy,
            clean_accuracy=score.clean,
            robust_accuracy=score.robust,
            collapsed=score.clean <= score.constant,
            radius=trainer.radius(last),
            rate=setting.rate_at(last),
            seconds=time.perf_counter() - started,
        )
        history = *history, record
        if workers.leads:
            folder.save(state, history)
        workers.wait()
        watch.finish(record)
        if board is not None:
            board.note(record)
    return history


def _reason(history: tuple[Epoch, ...], recipe: Recipe) -> str | None:
    return reason_to_stop(history, recipe.patience, recipe.eps)


def _classes(answer: object) -> int:
    """How many the model has, as its answer for one image tells."""
    if not isinstance(answer, Tensor) or answer.ndim != 2 or len(answer) != 1 or answer.shape[1] < 2:
        seen = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise ValueError(f"model must return logits of shape (1, classes) for one image, 2 or more, got {seen}")
    return int(answer.shape[1])


def _parameters(model: object) -> list[nn.Parameter]:
    """What there is to train."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be an nn.Module, got {type(model).__name__}")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("model must have parameters that require a gradient, got none")
    return parameters
