import numpy as np
import pytest
import torch

from models import build_agent
from models.caching import to_float01
from models.helm import Shelm
from models.word_embeddings import PromptEmbeddings
from tests.agents import percept, random_images, small_config, spaces
from tests.published_models import tiny_model_folder
from tests.test_observation_to_language import plain_retrieval
from tests.tiny_clip import tiny_clip, tiny_embeddings, tiny_encoder, tiny_settings
from utils.errors import UserError


def shelm_config(**changes):
    return small_config(model="SHELM", **(tiny_settings("SHELM") | changes))


def build(**changes):
    return build_agent(shelm_config(**changes), *spaces())


@pytest.mark.parametrize("topk", [1, 3])
def test_the_language_model_reads_the_words_of_the_explanation_best_first(topk):
    agent, found = build(topk=topk), PromptEmbeddings.read(tiny_embeddings())
    memory, expected_memory = agent.initial_memory(4), agent.initial_memory(4)
    encoder, language_model = tiny_encoder(), agent.frozen_memory.language_model
    for t in range(3):
        images, is_first = random_images(4), torch.full((4,), t == 0)
        step = agent.act(percept(images, is_first), memory)
        explanation = agent.explain(step)
        features = encoder(to_float01(images))
        plain = plain_retrieval(features, torch.from_numpy(found.embeddings), topk)
        ids = torch.tensor([[found.ids[number] for number, _ in best] for best in plain])
        words = [[language_model.vocabulary[id_] for id_ in row] for row in ids]
        assert explanation["words"].tolist() == words
        expected = np.array([[cosine for _, cosine in best] for best in plain])
        np.testing.assert_allclose(explanation["similarities"], expected, atol=2e-6)
        tokens = language_model.embed(ids)  # [N, K, D]
        hidden = language_model.step(tokens, expected_memory, is_first)
        torch.testing.assert_close(step.stored_state, hidden, atol=1e-5, rtol=0)


def test_other_weights_than_the_embeddings_were_made_with_are_refused(tmp_path):
    agent = build()
    assert {name.split(".")[0] for name in agent.state_dict()} == {"query_encoder", "heads"}
    found = PromptEmbeddings.read(tiny_embeddings())
    values = vars(found) | {"language_model_fingerprint": np.array("0" * 64)}
    PromptEmbeddings(**values).write(tmp_path / "other.npz")
    for name, changes in {
        "tiny-vit": {"clip_pretrained": str(tiny_clip(seed=1))},
        "transfo_xl_k1": {"embeddings": str(tmp_path / "other.npz")},
    }.items():
        with pytest.raises(UserError, match=f"other weights of .*{name}.*Run: python prepare_emb"):
            build(**changes)


MISTAKES = {
    ("mem_len", 1): "mem_len: 1 is below the 2 tokens of a step (topk)",
    ("topk", 400): "topk: 400 is more than the",
    ("embeddings", None): "data/tiny-vit_transfo_xl_k1_minigrid.npz is missing. Run: python",
    ("n_layer", 9): "n_layer: 9 is more than the 3 layers",
    ("language_model", "bert"): "topk: 13 is more than the 12 positions of",
}


@pytest.mark.parametrize(("name", "value"), MISTAKES)
def test_a_mistake_is_told_before_anything_is_loaded(name, value, in_empty_folder):
    changes = {name: value}
    if value == "bert":
        changes = {name: str(tiny_model_folder(in_empty_folder / "bert", "bert")), "topk": 13}
    with pytest.raises(UserError) as caught:
        Shelm.check(shelm_config(**changes))
    assert any(MISTAKES[name, value] in line for line in caught.value.lines)
