"""Adversarial training, epoch after epoch, into a folder."""

import os
import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from wasserball.attacks import PGD, Attack, FrankWolfe
from wasserball.checks import check_count
from wasserball.evaluate.folder import locked
from wasserball.evaluate.loop import check_fit
from wasserball.evaluate.setting import fingerprint_data
from wasserball.train.folder import Folder
from wasserball.train.held_out import HeldOut
from wasserball.train.history import Epoch, Training
from wasserball.train.progress import Watch, watching
from wasserball.train.setting import Setting, check_attack
from wasserball.train.trainer import Trainer, naming
from wasserball.zoo import Data, load_data

ATTACK = FrankWolfe(eps=0.3, steps=10)
JUDGE_STEPS = 20
"""Of PGD on the held-out samples: enough to tell epochs apart, not to say how robust the model is."""


def train(
    model: nn.Module,
    data: Any,
    *,
    out: str | os.PathLike[str],
    attack: Attack = ATTACK,
    epochs: int = 10,
    batch_size: int = 128,
    rate: float = 1e-3,
    warm_up: float = 1,
    clean_share: float = 0.0,
    held_out: int = 1000,
    limit: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    resume: bool = False,
    progress: bool = False,
    name: str | None = None,
    command: str | None = None,
) -> Training:
    """Train ``model``, in place, on the images that ``attack`` makes of ``data`` as it goes (Madry et al. 2018).

    ``data`` is what :func:`zoo.load_data` understands, its split ``"train"`` where it has several; ``limit`` takes the
    first so many samples, and the last ``held_out`` of them are not trained on. The radius grows from 0 to that of the
    attack over the first ``warm_up`` epochs, the learning ``rate`` of Adam falls to 0 on a cosine, and ``clean_share``
    of the loss is on clean images. After each epoch PGD with the full radius attacks the held-out samples: the weights
    that hold best are ``best.safetensors`` in ``out``, the model is left with those of the last epoch.

    What is finished stays: with ``resume`` a training that was stopped goes on after its last finished epoch, with the
    weights in the folder, and on a CPU ends with the bits with which it would have ended. A loss that is not finite
    is a ``ValueError``. ``name`` and ``command`` are for ``config.json``.
    """
    attack = replace(check_attack(attack), progress=False, return_plan=False)
    parameters = _parameters(model)
    if limit is not None:
        check_count("limit", limit)
    check_count("held_out", held_out)
    images = data if isinstance(data, Data) else load_data(data, split="train")
    taken = len(images) if limit is None else min(limit, len(images))
    place = parameters[0].device if device is None else torch.device(device)
    judge = PGD(eps=attack.eps, steps=JUDGE_STEPS, cost=attack.cost, bounds=attack.bounds, backend=attack.backend)
    setting = Setting(
        model=name or type(model).__name__,
        data=images.name,
        data_fingerprint=fingerprint_data(images, taken)[0],
        samples=taken - held_out,
        held_out=held_out,
        attack=repr(attack),
        judge=repr(judge),
        epochs=epochs,
        batch_size=batch_size,
        rate=rate,
        warm_up=warm_up,
        clean_share=clean_share,
        seed=seed,
        device=place.type,
    )
    others = HeldOut(data=images, first=taken - held_out, last=taken, judge=judge, batch_size=batch_size, device=place)
    others.check()
    folder = Folder(out)
    with locked(out, wanted=True), watching(setting, progress) as watch:
        folder.begin(setting, command or f"wb.train({setting.model}, {images.name!r}, …)", resume=resume)
        model.to(place)
        check_fit(model, images, place)
        optimizer = torch.optim.Adam(parameters, lr=rate)
        trainer = Trainer(model=model, optimizer=optimizer, attack=attack, data=images, setting=setting, device=place)
        return Training(folder.path, _work(trainer, others, folder, watch))


def _work(trainer: Trainer, others: HeldOut, folder: Folder, watch: Watch) -> tuple[Epoch, ...]:
    """All epochs that are not finished yet; returns the whole history."""
    model, optimizer, setting = trainer.model, trainer.optimizer, trainer.setting
    if not folder.last.exists():
        folder.save(model, optimizer, ())
    history = folder.restore(model, optimizer)
    for record in history:
        watch.finish(record)
    for epoch in range(len(history) + 1, setting.epochs + 1):
        started = time.perf_counter()
        try:
            tally = trainer.run(epoch, watch)
            with naming(f"epoch {epoch}, held-out samples"):
                score = others.measure(model)
        except ValueError as error:
            raise ValueError(f"{error} ({folder.last} is as it was after epoch {epoch - 1})") from error
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
        folder.save(model, optimizer, history)
        watch.finish(record)
    return history


def _parameters(model: object) -> list[nn.Parameter]:
    """What there is to train."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be an nn.Module, got {type(model).__name__}")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("model must have parameters that require a gradient, got none")
    return parameters
