import math

import pytest
import torch
from torch.nn import functional as F

from envs.minigrid_captions import CaptionBatches
from models import grid_clip
from models.caching import to_float01
from models.clip import load_encoder
from models.grid_clip import SCALE, ContrastiveLoss, GridClip, ViewEncoder, word_shares
from tests.bad_inputs.harness import in_one_line

WORDS = (
    *("red", "green", "blue", "purple", "yellow", "grey", "open", "closed", "locked", "carried"),
    *("key", "ball", "box", "door", "goal", "lava", "wall", "empty", "room", "tree", "house"),
)


def embed_texts(texts):
    """Return the mean of one fixed random vector per word."""
    table = torch.randn(len(WORDS), 384, generator=torch.Generator().manual_seed(0))
    numbers = [[n for n, word in enumerate(WORDS) if word in text.split()] for text in texts]
    return torch.stack([table[each].mean(0) for each in numbers])


@pytest.fixture(scope="module")
def batches():
    return list(CaptionBatches(seed=3, n_batches=30, batch_size=32))


def trained(batches, seed=0):
    loss = ContrastiveLoss(embed_texts, WORDS)
    return grid_clip.train_view_encoder(batches, loss, seed, progress=False)


def random_encoder():
    views = ViewEncoder()
    views(torch.rand(8, 3, 56, 56))  # moves the running statistics from where they start
    return GridClip(views)


@pytest.mark.slow
def test_a_few_steps_of_training_lower_the_loss(batches):
    loss = ContrastiveLoss(embed_texts, WORDS)
    images, captions = next(iter(CaptionBatches(seed=4, n_batches=1, batch_size=64)))
    images = to_float01(torch.from_numpy(images))
    networks = [trained(some).eval() for some in (batches[:1], batches)]
    before, after = (loss(network(images), captions).item() for network in networks)
    assert after < 0.8 * before


def test_the_loss_among_words_is_worked_out_by_hand():
    loss = ContrastiveLoss(lambda texts: torch.eye(384)[: len(texts)], ["door", "red", "key"])
    directions = torch.eye(384)[:1]  # points at "door"
    # Shares 3/4 and 1/4; scores SCALE, 0, 0.
    expected = math.log(math.exp(SCALE) + 2) - 0.75 * SCALE
    assert loss.among_words(directions, ["a red door"]).item() == pytest.approx(expected)


def test_equal_captions_share_what_is_right():
    loss = ContrastiveLoss(embed_texts, WORDS)
    captions = ["a red key", "lava", "a red key"]
    directions = F.normalize(embed_texts(captions), dim=-1)
    cosine = (directions[0] @ directions[1]).item()
    same = math.log(2 + math.exp(SCALE * (cosine - 1)))
    alone = math.log(1 + 2 * math.exp(SCALE * (cosine - 1)))
    found = loss.among_captions(directions, captions).item()
    assert found == pytest.approx((2 * same + alone) / 3, rel=1e-4)


def test_the_nouns_of_a_caption_count_more_than_what_describes_them():
    assert word_shares("lava") == {"lava": 1}
    assert word_shares("a red key") == {"key": 0.75, "red": 0.25}
    shares = word_shares("a red key and an open red door")
    assert shares == {"key": 3 / 9, "red": 2 / 9, "door": 3 / 9, "open": 1 / 9}


@pytest.mark.slow
def test_the_vocabulary_is_thousands_of_whole_words_each_once_with_those_of_captions(batches):
    vocabulary = random_encoder().vocabulary
    assert len(set(vocabulary)) == len(vocabulary) > 20_000
    pieces = ["key", "##s", "[CLS]", "a", "été", "3d", "[unused7]", "door"]
    assert grid_clip.whole_words(pieces) == ["key", "door"]
    used = {word for _, captions in batches for text in captions for word in word_shares(text)}
    assert {"key", "door", "lava"} <= used <= set(vocabulary)


def test_what_is_saved_is_loaded_and_recognised_by_its_fingerprint(tmp_path):
    encoder, other = random_encoder(), random_encoder()
    encoder.embed_texts(["key"])
    assert [len(encoder(torch.rand(2, 3, side, side))) for side in (28, 64)] == [2, 2]
    path = encoder.save(tmp_path / "data")
    loaded = load_encoder("grid-clip", data_folder=tmp_path / "data")
    images = torch.rand(2, 3, 56, 56)
    assert torch.equal(loaded(images), encoder(images))
    assert loaded.fingerprint == encoder.fingerprint != other.fingerprint
    assert path.stat().st_size < 5e6
    assert [file.name for file in path.parent.iterdir()] == ["grid-clip.pt"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"grid-clip.pt is missing\. Run: python prepare_emb"),
        (b"nothing of the kind", r"grid-clip.pt: not a file of"),
    ],
)
def test_a_missing_or_broken_file_is_refused_in_one_line(content, reason, tmp_path):
    if content:
        (tmp_path / "grid-clip.pt").write_bytes(content)
    with in_one_line(reason):
        grid_clip.load_grid_clip(data_folder=tmp_path)
