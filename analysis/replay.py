"""A language model reads an episode again, as the agent's did, and what can be seen then."""

import torch
from torch import Tensor

from models.helm import LanguageMemory, attention_by_step
from models.language.language_model import LanguageModel
from models.observations import Observations


@torch.no_grad()
def episode_tokens(language: LanguageMemory, observations: Observations) -> Tensor:
    """Return the tokens of an episode, past the memory's cache.

    Args:
        language: What maps to tokens.
        observations: Of T steps.

    Returns:
        [T, K, D]
    """
    to_language, device = language.to_language, language.language_model.embeddings.norms.device
    shown = observations.map(lambda kind: kind.to(device))
    blocks = map(to_language.prepared, to_language.seen(shown).split(to_language.block_size))
    tokens = torch.cat([to_language.tokens(to_language(block)) for block in blocks])
    return language.with_text(tokens, shown)


@torch.no_grad()
def episode_attention(language_model: LanguageModel, tokens: Tensor) -> Tensor:
    """Return how much each step of an episode looks at each step so far, the mean over heads.

    Rows sum to 1 where nothing has been forgotten and the model has no empty slots to look at.

    Args:
        language_model: The reader.
        tokens: Of T steps.  [T, K, D]

    Returns:
        [L, T, T], zero where a step lies ahead.
    """
    n_steps = len(tokens)
    memory, start = language_model.initial_memory(1), _flags(tokens)
    attention = tokens.new_zeros(language_model.n_layer, n_steps, n_steps)
    for t, new in enumerate(tokens[:, None]):
        (by_head,) = attention_by_step(language_model.attention(new, memory, start))
        seen = by_head.mean(1)  # [L, S]
        n_seen = min(t + 1, seen.shape[1])
        attention[:, t, t + 1 - n_seen : t + 1] = seen[:, seen.shape[1] - n_seen :]
        language_model.step(new, memory, start)
    return attention


@torch.no_grad()
def episode_hidden_states(language_model: LanguageModel, tokens: Tensor) -> Tensor:
    """Return every layer's output at the last token of each step; tokens [T, K, D].

    [L, T, D]
    """
    memory, start = language_model.initial_memory(1), _flags(tokens)
    hidden = []
    for new in tokens[:, None]:
        hidden.append(language_model.hidden_states(new, memory, start)[:, 0, -1])
        language_model.step(new, memory, start)
    return torch.stack(hidden, dim=1)


def _flags(tokens: Tensor) -> Tensor:
    """Return starts of a memory that is new already.  [1]"""
    return torch.zeros(1, dtype=torch.bool, device=tokens.device)
