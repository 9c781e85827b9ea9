"""Adversarial training: model × data × recipe → folder with the most robust weights."""

from wasserball.train.history import Epoch, Training
from wasserball.train.loop import finetune, train
from wasserball.train.recipe import RECIPES, Recipe

__all__ = ["RECIPES", "Epoch", "Recipe", "Training", "finetune", "train"]
