"""Random tokens of staggered episodes, for any test that lets a language model read."""

import torch

N_ENVS = 3


def stream(model, n_steps=20, n_envs=N_ENVS, n_new=1):
    """Return random tokens [T, N, K, D] and staggered episode starts [T, N]."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randn(n_steps, n_envs, n_new, model.width, generator=generator)
    is_first = torch.rand(n_steps, n_envs, generator=generator) < 0.15
    is_first[0] = True
    return tokens, is_first


def play(model, memory, tokens, is_first):
    """Return the hidden states of all steps.  [T, N, D]"""
    steps = zip(tokens, is_first, strict=True)
    return torch.stack([model.step(token, memory, start) for token, start in steps])
