"""Adversarial training: model × data × attack → folder with the most robust weights."""

from wasserball.train.history import Epoch, Training
from wasserball.train.loop import train

__all__ = ["Epoch", "Training", "train"]
