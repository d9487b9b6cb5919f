"""A decoder's probabilities and its writing, beside the library read plainly."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from models.language.files import find_model
from models.language.generation import TextModel, Writing
from tests.published_models import DECODERS, N_POSITIONS
from utils.errors import UserError

SHARED = " word1 word2 word3"
PROMPT = f"{SHARED} word4 word5"
PHRASES = [" word6 word7", " word6 word8 word9", " word7", " word6 word8 word2", " word1 word1"]


def plain_log_probabilities(published, prompt, phrases):
    """Return the mean log probability of each phrase's tokens, each read with the whole prompt."""
    folder = published.find("config.json").parent
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    n_prompt, scores = len(published.tokenize(prompt)), []
    for phrase in phrases:
        ids = torch.tensor([published.tokenize(prompt + phrase)])
        with torch.no_grad():
            log_probs = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)
        scores.append(
            float(log_probs[0, n_prompt - 1 : -1].gather(1, ids[0, n_prompt:, None]).mean())
        )
    return scores


@pytest.fixture(scope="module")
def llama(decoders):
    return TextModel(find_model(decoders["llama"]))


def library(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.quick(" word1 word2 word3-llama")
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("shared", ["", SHARED])
def test_phrases_together_are_as_likely_as_each_alone(decoders, name, shared):
    found = TextModel(find_model(decoders[name])).phrase_log_probabilities(PROMPT, PHRASES, shared)
    plain = plain_log_probabilities(find_model(decoders[name]), PROMPT, PHRASES)
    assert found == pytest.approx(plain, abs=1e-5)
    assert len(set(found)) == len(PHRASES)


def test_what_was_asked_before_changes_no_bit(decoders):
    fresh, used = (TextModel(find_model(decoders["qwen3"])) for _ in range(2))
    for prompt in (f"{SHARED} word9", f"{SHARED} word9 word9 word9", " word2"):
        used.phrase_log_probabilities(prompt, PHRASES[:2], SHARED)
    asked = (PROMPT, PHRASES, SHARED)
    assert used.phrase_log_probabilities(*asked) == fresh.phrase_log_probabilities(*asked)


def test_a_second_prompt_reads_what_is_new_alone(decoders):
    model = TextModel(find_model(decoders["llama"]))
    counts = []
    for prompt in (f"{SHARED} word4", f"{SHARED} word9", SHARED):
        before = model.n_read
        model.phrase_log_probabilities(prompt, [" word6 word7"], SHARED)
        counts.append(model.n_read - before)
    assert counts == [3 + 1 + 1, 1 + 1, 1 + 1]  # the shared part, the rest, the tree


def test_no_phrase_is_no_score_and_one_of_nothing_is_certain(llama):
    assert llama.phrase_log_probabilities(PROMPT, []) == []
    assert llama.phrase_log_probabilities(PROMPT, [""]) == [0.0]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text"])
def test_it_writes_what_the_library_writes(decoders, name):
    model, plain = TextModel(find_model(decoders[name])), library(decoders[name])
    prompts = [PROMPT, " word9", f"{SHARED} word2 word2 word2"]
    found = model.write(prompts, Writing(6, 0, ""), SHARED)
    for prompt, written in zip(prompts, found, strict=True):
        ids = torch.tensor([model.published.tokenize(prompt)])
        for _ in range(6):
            token = plain(input_ids=ids).logits[0, -1].argmax()
            ids = torch.cat((ids, token[None, None]), dim=1)
        expected = "".join(model.published.vocabulary()[i] for i in ids[0, -6:].tolist())
        assert expected.startswith(written.text)
        assert written.text == expected or "</s>" in expected


def test_what_is_drawn_depends_on_prompt_and_seed_alone(llama):
    writing = Writing(8, 1.0, "")
    alone = [llama.write([prompt], writing)[0] for prompt in (PROMPT, " word9")]
    assert llama.write([" word9", PROMPT], writing) == alone[::-1]
    assert llama.write([PROMPT], writing, seed=1)[0] != alone[0]


def test_it_stops_before_a_text_and_after_the_most_tokens(llama):
    text = llama.write([PROMPT], Writing(6, 0, ""))[0].text
    word = text.split()[2]
    stopped = llama.write([PROMPT], Writing(6, 0, word))[0]
    assert stopped.text == text.partition(word)[0]
    assert llama.write([PROMPT], Writing(2, 0, ""))[0].n_tokens == 2
    assert llama.write([], Writing()) == []


def test_the_likeliest_tokens_and_those_asked_for_are_told(llama):
    (told,) = llama.top_log_probabilities([PROMPT], SHARED, 3, (" word7", " word1 word2"))
    ids = torch.tensor([llama.published.tokenize(PROMPT)])
    logits = library(find_model(llama.name).folder)(input_ids=ids).logits[0, -1]
    expected = logits.detach().log_softmax(-1)
    names = llama.published.vocabulary()
    assert told[" word7"] == pytest.approx(float(expected[names.index(" word7")]), abs=1e-5)
    assert list(told)[:3] == [names[i] for i in expected.topk(3).indices]
    assert " word1 word2" not in told


def test_learned_positions_have_an_end(decoders):
    model = TextModel(find_model(decoders["gpt2"]))
    with pytest.raises(UserError, match=f"needs 14 tokens, and it reads {N_POSITIONS}"):
        model.phrase_log_probabilities(" word1" * 14, PHRASES)


def test_a_model_that_reads_trees_wrongly_is_refused(decoders, monkeypatch):
    from models.language import generation

    plain = generation.score_mask
    monkeypatch.setattr(generation, "score_mask", lambda hidden: 0 * plain(hidden))
    with pytest.raises(UserError, match=r"read together differ by \d"):
        TextModel(find_model(decoders["llama"]))
