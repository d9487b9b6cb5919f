import pytest
import torch

from models.language.load import load_language_model
from tests.published_models import tiny_bert_folder

N_ENVS = 2
N_POSITIONS = 12


@pytest.fixture
def folder(tmp_path):
    return tiny_bert_folder(tmp_path, n_positions=N_POSITIONS)


def library_hidden(folder, tokens, visible):
    """Return what the transformers library makes of a whole episode.

    Args:
        tokens: One episode per environment.  [N, T, D]
        visible: Which tokens each token may see.  [T, T]
    """
    from transformers import BertModel

    bert = BertModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation="eager")
    mask = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    positions = torch.arange(tokens.shape[1]).clamp(max=N_POSITIONS - 1)
    with torch.no_grad():
        return bert.eval()(
            inputs_embeds=tokens,
            attention_mask=mask.expand(len(tokens), 1, *visible.shape),
            position_ids=positions[None],
        ).last_hidden_state


def read(model, tokens, n_new=1):
    """Return the hidden states [N, T/K, D] of an episode fed K tokens at a time."""
    memory = model.initial_memory(N_ENVS)
    starts = torch.zeros(N_ENVS, dtype=torch.bool)
    calls = tokens.split(n_new, dim=1)
    return torch.stack([model.step(call, memory, starts) for call in calls], dim=1)


def episode(n_tokens):
    return torch.randn(N_ENVS, n_tokens, 24, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("n_new", [1, 2, 3])
def test_an_episode_agrees_with_the_transformers_library(folder, n_new):
    tokens = episode(12)
    expected = library_hidden(folder, tokens, torch.ones(12, 12, dtype=torch.bool).tril())
    found = read(load_language_model(folder, mem_len=11), tokens, n_new)
    torch.testing.assert_close(found, expected[:, n_new - 1 :: n_new], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("mem_len", "n_new"), [(4, 1), (4, 2), (4, 3), (11, 2), (30, 1), (30, 3)])
def test_the_oldest_tokens_leave_the_window(folder, mem_len, n_new):
    n_tokens = 36
    tokens = episode(n_tokens)
    window = min(mem_len + n_new, N_POSITIONS)
    last_of_call = torch.arange(n_tokens) // n_new * n_new + n_new - 1
    oldest = last_of_call - window + 1
    columns = torch.arange(n_tokens)
    visible = (columns >= oldest[:, None]) & (columns <= columns[:, None])
    expected = library_hidden(folder, tokens, visible)
    found = read(load_language_model(folder, mem_len=mem_len), tokens, n_new)
    torch.testing.assert_close(found, expected[:, n_new - 1 :: n_new], atol=1e-5, rtol=0)


def test_old_names_of_the_normalisation_are_understood(folder):
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    old = {}
    for name, tensor in weights.items():
        renamed = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
        old[f"bert.{renamed}"] = tensor
    tokens = episode(4)
    expected = read(load_language_model(folder), tokens)
    (folder / "model.safetensors").unlink()
    torch.save(old, folder / "pytorch_model.bin")
    found = read(load_language_model(folder), tokens)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
