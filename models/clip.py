"""Image encoders that share a space with text: CLIP by way of open_clip, or its stand-in."""

import logging
import os
import pkgutil
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.encoders import ImageTextEncoder
from models.language.load import local_main_process_first
from models.settings import ClipSettings
from utils.errors import UserError, did_you_mean
from utils.files import DATA_FOLDER
from utils.hub import HubError, hub_file

# Takes the weights out of OpenAI's archives, which also hold three numbers.
RECIPE = (
    "import torch; weights = torch.jit.load({archive!r}, map_location='cpu').state_dict(); "
    "torch.save({{name: weights[name] for name in weights if name not in "
    "('input_resolution', 'context_length', 'vocab_size')}}, {weights!r})"
)

PublishedFacts = Mapping[str, Any]  # open_clip's, of pretrained weights
GRID_CLIP = "grid-clip"  # an encoder of our own in CLIP's place
KNOWN_BY_GRID_CLIP = ("MiniGrid-", "BabyAI-")  # prefixes of the environments whose images it knows


def load_encoder(
    name: str, pretrained: str = "openai", device: str = "cpu", data_folder: Path = DATA_FOLDER
) -> ImageTextEncoder:
    """Return a frozen encoder of images and texts.

    `name` is `grid-clip`, or any model of open_clip such as `ViT-B-16`. `pretrained` is open_clip's
    tag of published weights, as "openai" or, for a revision of the hub, "openai@REVISION"; or a
    local checkpoint file. `data_folder` holds the encoder that `prepare_embeddings.py` trained.

    Raises:
        UserError: no such model or weights, or the hub that has them is out of reach.
    """
    if name == GRID_CLIP:
        return pkgutil.resolve_name("models.grid_clip:load_grid_clip")(device, data_folder)
    return ClipEncoder(name, pretrained, device)


def configured_encoder(config: ClipSettings) -> ImageTextEncoder:
    loaded = local_main_process_first(
        lambda: load_encoder(config.clip_encoder, config.clip_pretrained)
    )
    return loaded.to(config.device)


def check_encoder(config: ClipSettings) -> None:
    """Raise UserError where the encoder is missing or not for this env; fetch nothing."""
    name = config.clip_encoder
    if name != GRID_CLIP:
        _published_facts(name, config.clip_pretrained)
        return
    if not config.env.startswith(KNOWN_BY_GRID_CLIP):
        raise UserError(
            f"clip_encoder: {name} knows the images of {'* and '.join(KNOWN_BY_GRID_CLIP)}* only, "
            f"and env is '{config.env}'. "
            "Take CLIP, such as --var clip_encoder=ViT-B-16, or an agent without: --var model=HELM"
        )
    load_encoder(name)


class ClipEncoder(ImageTextEncoder):
    """CLIP (Radford et al. 2021, arXiv:2103.00020), any of open_clip's models.

    Images are prepared as in the original implementation of HELM, see `Preprocessing`, and encoded
    in single precision, where the original takes half precision on a GPU. OpenAI's published
    weights belong to the QuickGELU variant of a model: a tag of the hub chooses it, a local file
    needs it in the name (`ViT-B-16-quickgelu`).
    """

    def __init__(self, name: str, pretrained: str = "openai", device: str = "cpu") -> None:
        super().__init__()
        import open_clip

        self.name = name
        facts = _published_facts(name, pretrained)
        path = _weights_file(name, pretrained, facts)
        with _without_logging():
            self.clip = _empty_model(name, facts)
            _load_weights(self.clip, path, name)
        self.width = open_clip.get_model_config(name)["embed_dim"]
        self.preprocessing = Preprocessing(self.clip.visual.preprocess_cfg)
        self.requires_grad_(False).eval().to(device)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        return self.clip.encode_image(self.preprocessing(images))

    @torch.no_grad()
    def embed_texts(self, texts: list[str]) -> Tensor:
        ids = self.tokenizer(texts).to(self.clip.logit_scale.device)
        is_causal = getattr(self.clip, "attn_mask", None) is not None
        if is_causal and getattr(self.clip, "text_pool_type", None) == "argmax":
            return _causal_features(self.clip, ids)
        return self.clip.encode_text(ids)

    @cached_property
    def vocabulary(self) -> list[str]:
        """The decoded strings of all tokens: words first, then pieces that are no words.

        A string stands for the word where there is one, and for the piece otherwise.
        """
        # CLIP marks the end of a word; the original decoded the mark as a space, so that only
        # pieces of words could match another vocabulary.
        import open_clip

        if isinstance(self.tokenizer, open_clip.SimpleTokenizer):
            strings = _strings_of_clip(self.tokenizer)
        else:
            published = self.tokenizer.tokenizer
            ids, special = published.get_vocab(), set(published.all_special_tokens)
            tokens = sorted(set(ids) - special, key=ids.__getitem__)
            strings = [published.convert_tokens_to_string([token]).strip() for token in tokens]
        return [
            text
            for text in dict.fromkeys(strings)
            if text and text.isprintable() and "\N{REPLACEMENT CHARACTER}" not in text
        ]

    @cached_property
    def tokenizer(self) -> Any:
        import open_clip

        with _without_logging():
            return open_clip.get_tokenizer(self.name)


class Preprocessing:
    """Images as the input of an encoder, by open_clip's settings of it.

    As in the original implementation of HELM, which gave CLIP's own steps tensors in [0, 1]: cubic
    convolution with a = -0.75, sampled without antialiasing, so that values beyond [0, 1] stay.
    open_clip on pictures of eight bits uses a = -0.5, antialiases and cuts off. "squash" scales the
    sides apart; any other resize_mode cuts out the middle.
    """

    def __init__(self, settings: PublishedFacts) -> None:
        size = settings["size"]
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.interpolation = settings["interpolation"]
        self.squash = settings["resize_mode"] == "squash"
        self.mean, self.std = settings["mean"], settings["std"]

    def __call__(self, images: Tensor) -> Tensor:
        height, width = self._scaled(*images.shape[-2:])
        images = F.interpolate(images, (height, width), mode=self.interpolation)
        top, left = round((height - self.size[0]) / 2), round((width - self.size[1]) / 2)
        images = images[..., top : top + self.size[0], left : left + self.size[1]]
        mean, std = (images.new_tensor(each)[:, None, None] for each in (self.mean, self.std))
        return (images - mean) / std

    def _scaled(self, height: int, width: int) -> tuple[int, int]:
        if self.squash:
            return self.size
        if self.size[0] * width >= self.size[1] * height:
            return self.size[0], self.size[0] * width // height
        return self.size[1] * height // width, self.size[1]


def _published_facts(name: str, pretrained: str) -> PublishedFacts:
    import open_clip

    if name not in open_clip.list_models():
        known = [GRID_CLIP, *open_clip.list_models()]
        raise UserError(
            f"clip_encoder: '{name}' is unknown.{did_you_mean(name, known)} "
            f"Choose {GRID_CLIP} or a model of open_clip such as ViT-B-16 or RN50"
        )
    if os.path.isfile(pretrained):
        return {}
    # Published facts hold for a tag, whichever revision of its repository is taken.
    tag = pretrained.partition("@")[0]
    facts = open_clip.get_pretrained_cfg(name, tag)
    if not facts:
        tags = open_clip.list_pretrained_tags_by_model(name)
        raise UserError(
            f"clip_pretrained: '{pretrained}' is neither a file nor published for {name} "
            f"({', '.join(tags) or 'which takes a file only'}).{did_you_mean(tag, tags)}"
        )
    return facts


def _weights_file(name: str, pretrained: str, facts: PublishedFacts) -> Path:
    if not facts:
        return Path(pretrained)
    repository, _, file = facts["hf_hub"].rpartition("/")
    _, at, revision = pretrained.partition("@")
    names = [file] if file else ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"]
    try:
        return hub_file(f"{repository}{at}{revision}", *names)
    except HubError as error:
        raise UserError(
            f"clip_encoder '{name}' with the weights '{pretrained}' cannot be fetched from the hub "
            f"({error}). Without a connection: clip_encoder={GRID_CLIP}, or a local "
            "checkpoint by clip_pretrained=FILE"
        ) from error


def _empty_model(name: str, facts: PublishedFacts) -> Any:
    """Return a model without weights; the hub alone describes the text sides of some."""
    import open_clip

    try:
        return open_clip.create_model(
            name,
            load_weights=False,
            pretrained_text=False,
            force_quick_gelu=facts.get("quick_gelu", False),
            force_preprocess_cfg=dict(facts),
        )
    except Exception as error:  # whatever the hub, its client or another package may raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"clip_encoder '{name}' cannot be built ({reason})") from error


def _load_weights(clip: nn.Module, path: Path, name: str) -> None:
    import open_clip

    _check_no_program(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old formats, and files that are refused anyway
            open_clip.load_checkpoint(clip, str(path))
    except Exception as error:  # a broken or foreign file raises about ten kinds of errors
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: these are not the weights of {name} ({reason})") from error


def _check_no_program(path: Path) -> None:
    """Raise UserError for a file of `torch.jit.save`, which `torch.jit.load` would run."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        holds_code = any(name.endswith("/constants.pkl") for name in archive.namelist())
    if holds_code:
        recipe = RECIPE.format(archive=str(path), weights=f"{path.stem}-weights.pt")
        raise UserError(
            f"{path}: a TorchScript archive holds a program, and none is run here. If you trust "
            f"where it comes from, save its weights alone and name that file. In Python: {recipe}"
        )


def _causal_features(clip: Any, ids: Tensor) -> Tensor:
    """Do as CLIP's `encode_text`, up to the longest text's end instead of all 77 tokens."""
    # A text's feature is read at its end and depends on nothing behind it.
    ends = ids.argmax(-1)  # the end token has the highest id
    length = int(ends.max()) + 1
    # Causal: tokens behind the end, all padding, change nothing before it.
    hidden = clip.token_embedding(ids[:, :length]) + clip.positional_embedding[:length]
    hidden = clip.transformer(hidden, attn_mask=clip.attn_mask[:length, :length])
    hidden = clip.ln_final(hidden)[torch.arange(len(ids), device=ids.device), ends]
    return hidden @ clip.text_projection


def _strings_of_clip(tokenizer: Any) -> list[str]:
    numbers = [n for n in tokenizer.encoder.values() if n not in tokenizer.all_special_ids]
    strings = [tokenizer.decode([number]) for number in numbers]
    # Stable: whole words first, each group in the order of its tokens.
    strings.sort(key=lambda text: not text.endswith(" "))  # the mark of a word's end
    return [text.strip() for text in strings]


@contextmanager
def _without_logging() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
