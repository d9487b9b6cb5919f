"""One seed for everything random."""

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and PyTorch on every device."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
