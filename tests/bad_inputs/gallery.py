"""A folder full of files that are right, small ones of every kind, for a generator to spoil."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from models.word_embeddings import PromptEmbeddings
from tests.bad_inputs.harness import PROGRAMS, settings
from tests.bad_inputs.workshop import TINY_RUN
from tests.published_models import TRANSFORMER_XL, tiny_bert_folder
from tests.tiny_clip import tiny_clip, tiny_embeddings
from trainers.checkpoint import Checkpoints

GOOD = "good.json"
XL, BERT, CLIP, WORDS = "models/xl", "models/bert", "clip.safetensors", "embeddings.npz"
PICTURES, EPISODES = "pictures", "episodes/RandomMaze-v0/SHELM"
N_PICTURES = 60
TINY = TINY_RUN | {"n_steps": 32, "normalize_reward": "true", "adv_norm": "true"}
HELM = TINY | {"model": "HELM", "language_model": XL, "mem_len": 5}
CLIPPED = {"clip_encoder": "tiny-vit", "clip_pretrained": CLIP}
HELM_V2 = HELM | CLIPPED | {"model": "HELMv2"}
SHELM = HELM | CLIPPED | {"model": "SHELM", "embeddings": WORDS, "topk": 2}
AGENTS = {"HELM": HELM, "SHELM": SHELM}


def run_folder(model: str, name: str) -> str:
    """Return the place of a run, below the folder."""
    return f"experiments/{model}/RandomMaze-v0/{name}"


def build_gallery(folder: Path) -> Path:
    """Fill a folder and return it; each program has run once in this process then."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder):
        _models()
        _pictures()
        Path(GOOD).write_text(json.dumps(_as_json(TINY), indent=2))
        for model, agent in AGENTS.items():
            _train(settings(**agent), model)
        episodes = ["--ckpt-path", run_folder("SHELM", "good"), "--n-episodes=2"]
        assert PROGRAMS["eval"].main(episodes) == 0
        analysed = ["words", EPISODES, *settings(**SHELM), "--output=analysis_output"]
        assert PROGRAMS["analysis"].main(analysed) == 0
        for done in ("analysis_output",):
            shutil.rmtree(done)
    return folder


def _models() -> None:
    Path(XL).mkdir(parents=True)
    for name in ("config.json", "pytorch_model.bin", "vocab.bin"):
        shutil.copy(TRANSFORMER_XL / name, XL)
    tiny_bert_folder(Path(BERT))
    shutil.copy(tiny_clip(), CLIP)
    words = PromptEmbeddings.read(tiny_embeddings())
    dataclasses.replace(words, language_model=np.array(Path(XL).name)).write(Path(WORDS))


def _pictures() -> None:
    Path(PICTURES).mkdir()
    dice = np.random.default_rng(0)
    for number in range(N_PICTURES):
        picture = Image.fromarray(dice.integers(0, 256, (8, 8, 3), np.uint8))
        picture.save(Path(PICTURES, f"{number:02d}.png"))


def _train(command: list[str], model: str) -> None:
    """Train two runs, of which the second has been interrupted after an update."""
    assert PROGRAMS["main"].main([*command, "--run-id=good"]) == 0
    with _interrupted():
        status = PROGRAMS["main"].main([*command, "--var=seed=1", "--run-id=unfinished"])
    assert status == 128 + signal.SIGTERM
    assert Path(run_folder(model, "unfinished"), "ckpt_last.pt").is_file()


@contextlib.contextmanager
def _interrupted():
    """Ask a run to end after its first update."""
    after_update = Checkpoints.after_update

    def interrupting(keeper: Checkpoints, is_last: bool) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        after_update(keeper, is_last)

    with mock.patch.object(Checkpoints, "after_update", interrupting):
        yield


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    """Return settings of a command line as a settings file has them."""
    words = {"null": None, "true": True, "false": False}
    return {name: words.get(value, value) for name, value in values.items()}
