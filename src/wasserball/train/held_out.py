"""The samples that are never trained on, and what the model makes of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from wasserball.attacks import Attack
from wasserball.attacks.classifier import Classifier, frozen
from wasserball.attacks.inner import inner_maximum
from wasserball.evaluate.workers import Workers
from wasserball.train.samples import Samples


class Score(NamedTuple):
    """Accuracies on the held-out samples."""

    clean: float
    robust: float
    constant: float
    """Of the best answer that is always the same."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HeldOut:
    """Some samples, and who attacks them."""

    samples: Samples
    judge: Attack
    batch_size: int
    workers: Workers

    def measure(self, model: nn.Module) -> Score:
        """Ask the model about the samples as they are and as the judge makes them; each process has its share of them.

        To certify the images, as an evaluation does, would take longer than many an epoch, and tell epochs apart no
        better.
        """
        sums = torch.zeros(2 + self.samples.classes, dtype=torch.float64)
        for images, labels in self._batches(self.workers):
            radii = torch.full_like(labels, float(self.judge.eps), dtype=torch.float64)
            adversarial = inner_maximum(self.judge, model, images, labels, radii)
            with frozen(model):
                classifier = Classifier(model, images, draws=1, suspicious=False)
                right = classifier.logits(images).argmax(1) == labels
                holds = right & (classifier.logits(adversarial).argmax(1) == labels)
            sums[:2] += torch.stack([right.sum(), holds.sum()]).cpu()
            sums[2:] += labels.bincount(minlength=self.samples.classes).cpu()
        clean, robust, *classes = self.workers.sum(sums.to(self.samples.device)).tolist()
        count = len(self.samples)
        return Score(clean / count, robust / count, max(classes) / count)

    def check(self) -> None:
        """Read them all once, better now than after an epoch; accuracy on a single class would say nothing."""
        labels = torch.cat([labels for _, labels in self._batches(Workers())])
        if (labels == labels[0]).all():
            raise ValueError(
                f"data must have several classes: the {len(labels)} samples that are held out are all of class "
                f"{int(labels[0])} in {self.samples.data.name}"
            )

    def _batches(self, workers: Workers) -> Iterator[tuple[Tensor, Tensor]]:
        places = torch.arange(len(self.samples)).tensor_split(workers.count)[workers.rank]
        return self.samples.batches(torch.split(places, self.batch_size) if len(places) else [])
