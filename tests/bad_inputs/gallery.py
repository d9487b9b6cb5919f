"""A folder full of small files that are right, for a generator to spoil, and a few that are not."""

import contextlib
import dataclasses
import json
import os
import pickle
import shutil
import signal
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from models.word_embeddings import PromptEmbeddings
from tests.bad_inputs.harness import PROGRAMS, TRACE, settings
from tests.published_models import TRANSFORMER_XL
from tests.tiny_clip import tiny_clip, tiny_embeddings
from trainers.checkpoint import Checkpoints

GOOD = "good.json"
XL, CLIP, WORDS = "models/xl", "clip.safetensors", "embeddings.npz"
PREPARED = ["--clip-encoder=tiny-vit", f"--clip-pretrained={CLIP}", f"--language-model={XL}"]
PREPARED += ["--device=cpu", "--data-folder=folder"]
TINY = {
    **{"model": "CNN-PPO", "env": "RandomMaze-v0", "device": "cpu", "showcase_minutes": "null"},
    **{"n_envs": 2, "n_rollout_steps": 8, "n_batches": 2, "n_epochs": 1, "n_steps": 32},
    **{"normalize_reward": "true", "adv_norm": "true"},
}
HELM = TINY | {"model": "HELM", "language_model": XL, "mem_len": 5}
CLIPPED = {"clip_encoder": "tiny-vit", "clip_pretrained": CLIP}
HELM_V2 = HELM | CLIPPED | {"model": "HELMv2"}
SHELM = HELM | CLIPPED | {"model": "SHELM", "embeddings": WORDS, "topk": 2}
MAZE = TINY | {"model": "CNN", "env": "TMazePassive-v0"}
HELM_GOOD, HELM_UNFINISHED = (f"experiments/HELM/RandomMaze-v0/{n}" for n in ("good", "unfinished"))
MAZE_GOOD = "experiments/CNN/TMazePassive-v0/good"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360f8cfc000000301010018dd8db00000000049454e44ae426082"
)
NESTED = 100_000
JSON_FILES = {
    "truncated": b'{"gamma": 0.5',
    "empty": b"",
    "NaN inside": b'{"gamma": NaN}',
    "infinite": b'{"gamma": 1e999}',
    "key twice": b'{"gamma": 0.5, "gamma": 0.6}',
    "array": b"[1]",
    "byte order mark": b"\xef\xbb\xbf{}",
    "utf-16": '{"gamma": 0.5}'.encode("utf-16"),
    "deep arrays": b"[" * NESTED,
    "deep value": b'{"n_envs": ' + b"[" * 500 + b"]" * 500 + b"}",
    "integer of 5000 digits": b'{"n_envs": 1' + b"0" * 5000 + b"}",
    "key with a line break": b'{"a\\nb": 1}',
    "key of a megabyte": b'{"' + b"k" * 2**20 + b'": 1}',
    "key with half a sign": b'{"\\ud800": 1}',
    "two objects": b"{} {}",
    "env with half a sign": b'{"env": "\\ud800"}',
    "language model with a zero byte": b'{"language_model": "a\\u0000b"}',
}
HEADER = b"env_steps,rollout/return_mean\n"
METRICS = {
    "no rows": HEADER,
    "text": HEADER + b"1,hello\n",
    "short row": HEADER + b"1\n",
    "long row": HEADER + b"1,2,3\n",
    "no steps": b"steps,rollout/return_mean\n1,2\n",
    "other columns": b"env_steps,other\n1,2\n",
    "binary": PNG,
    "huge field": HEADER + b"1," + b"9" * 200_000 + b"\n",
}
MODULES = {  # that are to register an environment
    "raises": "1 / 0",
    "says_much": "raise ValueError('a line\\nand another' * 999)",
    "exits": "import sys; sys.exit(0)",
    "aborts": "raise BaseException('a line\\nand another')",
    "is_not_python": "def (",
    "is_binary": "\0",
    "needs_more": "import no_such_package",
    "registers_nothing": "",
    "registers_another": "import gymnasium; gymnasium.register('Mime-v0', 'modules.raises:Mine')",
    "registers_badly": "import gymnasium; gymnasium.register('no id at all!', object)",
}
FOREIGN = (
    *("empty", "text", "picture.png", "pickle.pkl", "intruder.pt", "old_intruder.pt", "list.pt"),
    *("hidden_intruder.pt", "array.npy", "objects.npz", "script.pt"),
)


class Intruder:
    """Leaves a trace where it is unpickled."""

    def __reduce__(self):
        return open, (TRACE, "w")


def build_gallery(folder):
    """Fill a folder and return it; each program has run once in this process then."""
    folder.mkdir(parents=True)
    with contextlib.chdir(folder):
        _models()
        words = {"null": None, "true": True, "false": False}
        Path(GOOD).write_text(json.dumps({k: words.get(v, v) for k, v in TINY.items()}, indent=2))
        _train(settings(**HELM))
        assert PROGRAMS["main"].main([*settings(**MAZE), "--run-id=good"]) == 0
        _foreign()
    return folder


def _models():
    Path(XL).mkdir(parents=True)
    for name in ("config.json", "pytorch_model.bin", "vocab.bin"):
        shutil.copy(TRANSFORMER_XL / name, XL)
    shutil.copy(tiny_clip(), CLIP)
    words = PromptEmbeddings.read(tiny_embeddings())
    dataclasses.replace(words, language_model=np.array(Path(XL).name)).write(Path(WORDS))


def _train(command):
    """Train two runs, of which the second has been interrupted after an update."""
    assert PROGRAMS["main"].main([*command, "--run-id=good"]) == 0
    after_update = Checkpoints.after_update

    def interrupting(*arguments, **named):
        os.kill(os.getpid(), signal.SIGTERM)
        after_update(*arguments, **named)

    with mock.patch.object(Checkpoints, "after_update", interrupting):
        status = PROGRAMS["main"].main([*command, "--var=seed=1", "--run-id=unfinished"])
    assert status == 128 + signal.SIGTERM


def _foreign():
    """Write files of kinds that no program reads."""
    for folder in ("folder", "json", "modules", "foreign", "few"):
        Path(folder).mkdir()
    for name, content in JSON_FILES.items():
        Path("json", name).write_bytes(content)
    for name, text in MODULES.items():
        Path("modules", f"{name}.py").write_text(text)
    for name, content in METRICS.items():
        run = Path("runs", name)
        run.mkdir(parents=True)
        (run / "config.json").write_text('{"model": "HELM", "env": "RandomMaze-v0", "seed": 0}')
        (run / "metrics.csv").write_bytes(content)
    Path("few/one.png").write_bytes(PNG)
    foreign = Path("foreign")
    (foreign / "empty").touch()
    (foreign / "text").write_text("hello\n")
    (foreign / "picture.png").write_bytes(PNG)
    (foreign / "pickle.pkl").write_bytes(pickle.dumps(Intruder()))
    torch.save(Intruder(), foreign / "intruder.pt")
    torch.save(Intruder(), foreign / "old_intruder.pt", _use_new_zipfile_serialization=False)
    torch.save({"state_dict": Intruder()}, foreign / "hidden_intruder.pt")
    torch.save([1, 2], foreign / "list.pt")
    np.save(foreign / "array.npy", np.zeros(3))
    np.savez(foreign / "objects.npz", tokens=np.array([Intruder()], dtype=object))
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), foreign / "script.pt")
