from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from models import clip
from models.clip import ClipEncoder, load_encoder
from tests.agents import small_config
from tests.bad_inputs.harness import in_one_line, refused, settings
from tests.tiny_clip import tiny_clip, tiny_encoder, tiny_settings
from utils.errors import UserError
from utils.hub import HubError


@pytest.fixture
def encoder():
    return tiny_encoder()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(56, 56), (60, 80), (80, 60), (64, 33), (9, 9)])
@pytest.mark.parametrize("size", [32, 224])
def test_images_are_prepared_as_clips_own_steps_do_with_tensors(shape, size):
    import open_clip
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as steps

    settings = {"size": size, "mode": "RGB", "interpolation": "bicubic", "resize_mode": "shortest"}
    settings |= {"mean": open_clip.OPENAI_DATASET_MEAN, "std": open_clip.OPENAI_DATASET_STD}
    images = torch.rand(2, 3, *shape)
    theirs = steps.resize(images, size, InterpolationMode.BICUBIC, antialias=False)
    theirs = steps.center_crop(theirs, size)
    theirs = steps.normalize(theirs, settings["mean"], settings["std"])
    ours = clip.Preprocessing(settings)(images)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_an_image_is_squashed_where_the_model_was_trained_so():
    settings = {"size": (4, 6), "interpolation": "bilinear", "resize_mode": "squash"}
    prepare = clip.Preprocessing(settings | {"mean": (0.5,) * 3, "std": (0.5,) * 3})
    images = torch.rand(2, 3, 8, 30)
    resized = F.interpolate(images, (4, 6), mode="bilinear")
    torch.testing.assert_close(prepare(images), 2 * resized - 1)


def test_texts_get_the_features_of_open_clips_own_encoding(encoder):
    texts = ["key", "a screenshot of many doors", "a", "x" * 500]
    theirs = encoder.clip.encode_text(encoder.tokenizer(texts))
    ours = encoder.embed_texts(texts)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder.embed_texts(["a"])[0], theirs[2], atol=1e-5, rtol=0)
    encoder.clip.text_pool_type = "last"  # another kind of tower is left to open_clip
    assert not torch.allclose(encoder.embed_texts(texts), ours)


def test_images_get_the_features_of_open_clips_own_encoding(encoder):
    images = torch.rand(3, 3, 32, 32)
    own = encoder.preprocessing
    mean, std = (torch.tensor(each)[:, None, None] for each in (own.mean, own.std))
    theirs = encoder.clip.encode_image((images - mean) / std)
    torch.testing.assert_close(encoder(images), theirs, atol=1e-5, rtol=0)


def test_words_are_preferred_to_pieces_and_each_string_is_there_once(encoder):
    vocabulary = encoder.vocabulary
    assert len(set(vocabulary)) == len(vocabulary)
    assert {"key", "door", "the", "!", "東"} <= set(vocabulary)
    assert not [w for w in vocabulary if w != w.strip() or "</w>" in w or "text>" in w or not w]
    pieces = {"schizoph", "slovak"}  # no tokens of their own at the end of a word
    assert pieces <= set(vocabulary)
    first_piece = min(vocabulary.index(piece) for piece in pieces)
    assert first_piece > max(vocabulary.index(word) for word in ("key", "proton", "wada"))


def test_a_fingerprint_tells_weights_apart_and_not_their_files(tmp_path):
    from safetensors.torch import load_file

    torch.save({"state_dict": load_file(tiny_clip())}, tmp_path / "same.pt")
    same = load_encoder("tiny-vit", str(tmp_path / "same.pt"))
    assert same.fingerprint == tiny_encoder().fingerprint
    assert same.fingerprint != tiny_encoder(seed=1).fingerprint
    assert len(same.fingerprint) == 64


class Program(nn.Module):
    """Writes a file where it is loaded by `torch.jit.load`."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        return torch.zeros(3), self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]):
        written = torch.from_file("code_was_run", shared=True, size=1).fill_(1)
        self.training = state[1] and bool(written.sum() > 0)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("model", ["HELMv2", "SHELM"])
def test_a_program_in_an_archive_is_not_run(model, in_empty_folder, capsys):
    torch.jit.script(Program()).save("program.pt")
    Path("code_was_run").unlink(missing_ok=True)
    chosen = tiny_settings(model) | {"model": model, "env": "RandomMaze-v0", "device": "cpu"}
    (line,) = refused(capsys, "main", settings(**chosen | {"clip_pretrained": "program.pt"}))
    assert line.startswith("program.pt: a TorchScript archive holds a program")
    torch.jit.load("program.pt")
    assert Path("code_was_run").exists()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_the_archives_of_openai_are_refused_with_what_converts_them(encoder, in_empty_folder):
    holder = nn.Module()
    for name, tensor in encoder.clip.state_dict().items():
        *path, last = name.split(".")
        parent = holder
        for part in path:
            if not hasattr(parent, part):
                parent.add_module(part, nn.Module())
            parent = getattr(parent, part)
        parent.register_buffer(last, tensor.half())
    for name in ("input_resolution", "context_length", "vocab_size"):
        holder.register_buffer(name, torch.tensor(77))
    torch.jit.script(holder).save("tiny.pt")
    with in_one_line("In Python: ") as caught:
        load_encoder("tiny-vit", "tiny.pt")
    exec(str(caught.value).partition("In Python: ")[2], {})
    images = torch.rand(2, 3, 32, 32)
    converted = load_encoder("tiny-vit", "tiny-weights.pt")
    torch.testing.assert_close(converted(images), encoder(images), atol=5e-3, rtol=0)


@pytest.fixture
def published(monkeypatch):
    """Publish tiny-vit under tags, a local file standing in for the hub; return the requests."""
    import open_clip

    asked = []

    def hub_file(repository, *names):
        asked.append((repository, *names))
        return tiny_clip()

    tags = {"openai": {"hf_hub": "someone/tiny/", "quick_gelu": True, "mean": (0.1, 0.2, 0.3)}}
    tags["plain"] = {"hf_hub": "someone/plain/model.bin"}
    tiny_clip()
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny-vit", tags)
    monkeypatch.setattr(clip, "hub_file", hub_file)
    return asked


def test_a_tag_is_fetched_from_the_hub_with_what_belongs_to_it(published, encoder):
    from open_clip.transformer import QuickGELU

    names = ("openai@abc", "plain")
    tagged, plain = (load_encoder("tiny-vit", name) for name in names)
    files = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
    assert published[:2] == [("someone/tiny@abc", *files), ("someone/plain", "model.bin")]
    assert tagged.preprocessing.mean == (0.1, 0.2, 0.3)
    for module in (tagged.clip.visual, tagged.clip.transformer):
        assert any(isinstance(part, QuickGELU) for part in module.modules())
    assert not any(isinstance(part, QuickGELU) for part in plain.clip.modules())
    images = torch.rand(1, 3, 32, 32)
    assert torch.equal(plain(images), encoder(images))
    with pytest.raises(UserError, match="Did you mean 'openai'"):
        clip.check_encoder(SimpleNamespace(clip_encoder="tiny-vit", clip_pretrained="opnai@abc"))


def test_a_hub_out_of_reach_is_one_line_with_the_offline_choices(published, monkeypatch):
    def unreachable(*_):
        raise HubError("name not known")

    monkeypatch.setattr(clip, "hub_file", unreachable)
    with in_one_line(r"grid-clip.*clip_pretrained=FILE"):
        load_encoder("tiny-vit")


@pytest.mark.parametrize(
    ("name", "pretrained", "line"),
    [
        ("ViT-B16", "openai", "'ViT-B16' is unknown. Did you mean 'ViT-B-16'"),
        ("gridclip", "openai", "Did you mean 'grid-clip'"),
        ("ViT-B-16", "opnai", "neither a file nor published for ViT-B-16 .*Did you mean 'openai'"),
        ("ViT-B-16", "nowhere.pt", "'nowhere.pt' is neither a file nor published"),
        ("tiny-resnet", "openai", "takes a file only"),
    ],
)
def test_an_encoder_that_is_not_there_is_one_line(name, pretrained, line):
    tiny_clip()
    with in_one_line(line):
        clip.check_encoder(small_config(clip_encoder=name, clip_pretrained=pretrained))


@pytest.mark.parametrize("content", ["other model", "text", "tensors"])
def test_a_foreign_file_is_one_line(content, tmp_path):
    path = tmp_path / "weights.pt"
    if content == "text":
        path.write_text("hello")
    elif content == "tensors":
        torch.save({"weight": torch.zeros(3)}, path)
    else:
        path = tiny_clip("tiny-resnet")
    with in_one_line("these are not the weights of tiny-vit"):
        ClipEncoder("tiny-vit", str(path))
