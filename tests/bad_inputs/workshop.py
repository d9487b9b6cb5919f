"""A folder full of files that no program may take."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import main as main_program
from models.word_embeddings import CHECKSUM, PromptEmbeddings
from tests.bad_inputs.harness import settings
from tests.published_models import tiny_bert_folder
from tests.tiny_clip import tiny_clip, tiny_embeddings
from trainers.checkpoint import FORMAT, UNWRITTEN, load_checkpoint, save_checkpoint

TRACE = "code_was_run"  # the file an intruder would leave
TINY_RUN = {
    "model": "CNN-PPO",
    "env": "RandomMaze-v0",
    "device": "cpu",
    "n_envs": 2,
    "n_rollout_steps": 8,
    "n_batches": 2,
    "n_epochs": 1,
    "n_steps": 16,
    "media_minutes": "null",
}
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360f8cfc000000301010018dd8db00000000049454e44ae426082"
)
NESTED = 100_000
OBSERVATIONS, ACTIONS = np.zeros((3, 3, 9, 9), np.uint8), np.zeros(3, np.int64)
EPISODES: dict[str, dict[str, np.ndarray]] = {
    "no observations.npz": {"actions": ACTIONS},
    "no actions.npz": {"observations": OBSERVATIONS},
    "no steps.npz": {"observations": OBSERVATIONS[:0], "actions": ACTIONS[:0]},
    "flat.npz": {"observations": OBSERVATIONS[:, 0, 0], "actions": ACTIONS},
    "fractions.npz": {"observations": OBSERVATIONS.astype(float), "actions": ACTIONS},
    "other lengths.npz": {"observations": OBSERVATIONS, "actions": ACTIONS[:2]},
    "actions as text.npz": {"observations": OBSERVATIONS, "actions": ACTIONS.astype(str)},
}
FOREIGN = (
    *("empty", "text", "picture.png", "pickle.pkl", "intruder.pt", "old_intruder.pt", "list.pt"),
    *("hidden_intruder.pt", "array.npy", "objects.npy", "objects.npz", "arrays.npz"),
    *("other.safetensors", "script.pt"),
)
RUN = {"model": "HELM", "env": "RandomMaze-v0", "seed": 0}

JSON_FILES = {
    "truncated": b'{"gamma": 0.5',
    "empty": b"",
    "blank": b" \n",
    "not a number": b"NaN",
    "NaN inside": b'{"gamma": NaN}',
    "infinite": b'{"gamma": 1e999}',
    "key twice": b'{"gamma": 0.5, "gamma": 0.6}',
    "array": b"[1]",
    "text": b'"gamma"',
    "null": b"null",
    "number": b"3",
    "byte order mark": b"\xef\xbb\xbf{}",
    "latin-1": b'{"env": "caf\xe9"}',
    "utf-16": '{"gamma": 0.5}'.encode("utf-16"),
    "deep arrays": b"[" * NESTED,
    "deep objects": b'{"a":' * NESTED,
    "deep value": b'{"n_envs": ' + b"[" * 500 + b"]" * 500 + b"}",
    "integer of 400 digits": b'{"n_envs": 1' + b"0" * 400 + b"}",
    "integer of 5000 digits": b'{"n_envs": 1' + b"0" * 5000 + b"}",
    "number of 400 digits": b'{"gamma": 1' + b"0" * 400 + b"}",
    "picture": PNG,
    "zero bytes": b"\0" * 64,
    "unknown key": b'{"learnin_rate": 1}',
    "key with a line break": b'{"a\\nb": 1}',
    "key of a megabyte": b'{"' + b"k" * 2**20 + b'": 1}',
    "key with half a sign": b'{"\\ud800": 1}',
    "empty key": b'{"": 1}',
    "two objects": b"{} {}",
    "single quotes": b"{'gamma': 0.5}",
    "comment": b'{"gamma": 0.5} // half',
    "trailing comma": b'{"gamma": 0.5,}',
    "number as text": b'{"gamma": "0.5"}',
    "truth as number": b'{"adv_norm": 1}',
    "number as truth": b'{"n_envs": true}',
    "settings in settings": b'{"config": {"gamma": 0.5}}',
    "value as list": b'{"env": ["RandomMaze-v0"]}',
    "env with half a sign": b'{"env": "\\ud800"}',
    "language model with a zero byte": b'{"language_model": "a\\u0000b"}',
}

MODULES = {  # that are to register an environment
    "raises": "1 / 0",
    "says_much": "raise ValueError('a line\\nand another' * 999)",
    "exits": "import sys; sys.exit(0)",
    "stops": "raise SystemExit('stop')",
    "is_not_python": "def (",
    "is_binary": "\0",
    "needs_more": "import no_such_package",
    "registers_nothing": "",
    "registers_another": "import gymnasium; gymnasium.register('Mime-v0', 'modules.raises:Mine')",
    "registers_badly": "import gymnasium; gymnasium.register('no id at all!', object)",
}


class Intruder:
    """Leaves a trace where it is unpickled."""

    def __reduce__(self):
        return open, (TRACE, "w")


def build(folder):
    """Fill the folder, which is the working directory."""
    files(folder)
    checkpoints(folder / "checkpoints")
    language_models(folder / "models")
    embeddings(folder / "embeddings")
    pictures(folder / "pictures")
    runs(folder / "runs")
    episodes(folder / "episodes")


def files(folder):
    """Write what is of no kind a program reads, and weights that are not right."""
    (folder / "json").mkdir()
    for name, content in JSON_FILES.items():
        (folder / "json" / name).write_bytes(content)
    (folder / "modules").mkdir()
    for name, content in MODULES.items():
        (folder / "modules" / f"{name}.py").write_text(content)
    (folder / "folder").mkdir()
    foreign = folder / "foreign"
    foreign.mkdir()
    (foreign / "empty").touch()
    (foreign / "text").write_text("hello\n")
    (foreign / "picture.png").write_bytes(PNG)
    (foreign / "pickle.pkl").write_bytes(pickle.dumps(Intruder()))
    torch.save(Intruder(), foreign / "intruder.pt")
    torch.save(Intruder(), foreign / "old_intruder.pt", _use_new_zipfile_serialization=False)
    torch.save({"state_dict": Intruder()}, foreign / "hidden_intruder.pt")
    torch.save([1, 2], foreign / "list.pt")
    np.save(foreign / "array.npy", np.zeros(3))
    np.save(foreign / "objects.npy", np.array([Intruder()], dtype=object), allow_pickle=True)
    np.savez(foreign / "objects.npz", tokens=np.array([Intruder()], dtype=object))
    np.savez(foreign / "arrays.npz", other=np.zeros(3))
    save_file({"other": torch.zeros(3)}, foreign / "other.safetensors")
    module = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    torch.jit.save(module, foreign / "script.pt")
    shutil.copy(tiny_clip("tiny-resnet"), foreign / "other_clip.safetensors")
    content = tiny_clip().read_bytes()
    (foreign / "half_clip.safetensors").write_bytes(content[: len(content) // 2])


def checkpoints(folder):
    """Train for a moment and write what may have become of the checkpoint."""
    assert main_program.main([*settings(**TINY_RUN), "--run-id", "good"]) == 0
    good = next(Path("experiments").rglob("ckpt_last.pt"))
    maze = TINY_RUN | {"model": "CNN", "env": "TMazePassive-v0"}
    assert main_program.main([*settings(**maze), "--run-id", "maze"]) == 0
    folder.mkdir()
    state = load_checkpoint(good)
    for label, change in changed_parts(state["config"], state["agent"]).items():
        save_checkpoint(folder / f"{label}.pt", state | change)
    save_checkpoint(folder / "with intruder.pt", state | {"more": Intruder()})
    save_checkpoint(folder / "list.pt", [state])
    for label, content in broken_contents(good.read_bytes()).items():
        (folder / f"{label}.pt").write_bytes(content)


def changed_parts(config, agent):
    """Return what to change in a good checkpoint, by what is wrong then."""
    name = "heads.critic.3.bias"
    without = {key: tensor for key, tensor in agent.items() if key != name}
    return {
        "no settings": {"config": None},
        "settings as list": {"config": [1]},
        "settings as text": {"config": "CNN-PPO"},
        "settings with numbers as keys": {"config": config | {1: 2}},
        "settings with tensors": {"config": config | {"gamma": torch.ones(2)}},
        "settings with sets": {"config": config | {"env": {"RandomMaze-v0"}}},
        "unknown setting": {"config": config | {"learnin_rate": 1}},
        "a setting missing": {"config": {k: v for k, v in config.items() if k != "seed"}},
        "unknown model": {"config": config | {"model": "GTP"}},
        "model elsewhere": {"config": config | {"model": "../../../elsewhere"}},
        "unknown env": {"config": config | {"env": "Pong"}},
        "env elsewhere": {"config": config | {"env": "../../../elsewhere"}},
        "env absolute": {"config": config | {"env": "/elsewhere"}},
        "negative memory": {"config": config | {"mem_len": -1}},
        "env of other images": {"config": config | {"env": "MiniGrid-Empty-5x5-v0"}},
        "another agent": {"config": config | {"model": "Impala-PPO"}},
        "no language model": {"config": config | {"model": "HELM", "language_model": "folder"}},
        "weights are nothing": {"weights": None},
        "weights as text": {"weights": "language_model"},
        "weights with numbers as keys": {"weights": {1: 2, "language_model": "0" * 64}},
        "other weights": {"weights": {"language_model": "0" * 64}},
        "steps as text": {"env_steps": "16"},
        "steps below zero": {"env_steps": -(10**12)},
        "agent is nothing": {"agent": None},
        "agent is text": {"agent": "CNN-PPO"},
        "agent is empty": {"agent": {}},
        "tensor missing": {"agent": without},
        "tensor too many": {"agent": agent | {"more": torch.zeros(1)}},
        "tensor of other shape": {"agent": agent | {name: torch.zeros(7)}},
        "tensor is text": {"agent": agent | {name: "0"}},
        "weights not finite": {"agent": agent | {name: torch.full((1,), torch.nan)}},
    }


def broken_contents(content):
    """Return what may have become of a file's bytes on the disk, by what is wrong."""
    contents = {
        "half": content[: len(content) // 2],
        "without its end": content[:-1000],
        "without its header": content[len(UNWRITTEN) :],
        "another byte": content[:-1000] + bytes([content[-1000] ^ 1]) + content[-999:],
    }
    for number in (b"000", b"001", b"999", b"two"):
        contents[f"format {number.decode()}"] = content.replace(b"%03d" % FORMAT, number, 1)
    return contents


def language_models(folder):
    """Write models in the published layout with one thing wrong in each."""
    good = tiny_bert_folder(folder / "good")
    config = json.loads((good / "config.json").read_text())
    for key in ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"):
        change_config(good, f"without {key}", {k: v for k, v in config.items() if k != key})
        change_config(good, f"{key} as text", config | {key: "many"})
        change_config(good, f"{key} of 0", config | {key: 0})
        change_config(good, f"{key} huge", config | {key: 10**9})
    for key in ("hidden_act", "layer_norm_eps", "max_position_embeddings", "model_type"):
        change_config(good, f"without {key}", {k: v for k, v in config.items() if k != key})
        change_config(good, f"{key} as list", config | {key: [1]})
    change_config(good, "config as list", [config])
    change_config(good, "gpt2", config | {"model_type": "gpt2"})
    for name in ("deep arrays", "picture", "truncated", "empty", "integer of 5000 digits"):
        changed(good, f"config {name}")
        (folder / f"config {name}" / "config.json").write_bytes(JSON_FILES[name])

    weights = load_file(good / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    without = {key: tensor for key, tensor in weights.items() if key != name}
    change_weights(good, "tensor missing", without)
    change_weights(good, "tensor turned", weights | {name: weights[name].t().contiguous()})
    change_weights(good, "tensor not finite", weights | {name: weights[name] * torch.nan})
    change_weights(good, "no tensors", {})
    content = (good / "model.safetensors").read_bytes()
    for label, part in (("half", content[: len(content) // 2]), ("empty", b""), ("picture", PNG)):
        (changed(good, f"weights {label}") / "model.safetensors").write_bytes(part)
    (changed(good, "no weights") / "model.safetensors").unlink()
    intruder = changed(good, "intruder")
    (intruder / "model.safetensors").unlink()
    torch.save({"x": Intruder()}, intruder / "pytorch_model.bin")
    (changed(good, "no vocabulary") / "vocab.txt").unlink()
    (changed(good, "vocabulary binary") / "vocab.txt").write_bytes(PNG)
    for label, value in (("intruder", Intruder()), ("number", {"idx2sym": 3}), ("list", [1])):
        saved = changed(good, f"vocabulary {label}")
        (saved / "vocab.txt").unlink()
        torch.save(value, saved / "vocab.bin")


def changed(good, name):
    """Return a copy of the good model under another name."""
    return Path(shutil.copytree(good, good.with_name(name)))


def change_config(good, name, config):
    (changed(good, name) / "config.json").write_text(json.dumps(config))


def change_weights(good, name, weights):
    save_file(weights, changed(good, name) / "model.safetensors")


def embeddings(folder):
    """Write files of embeddings with one thing wrong in each."""
    folder.mkdir()
    with np.load(tiny_embeddings()) as arrays:
        good = dict(arrays)
    n_words, width = good["embeddings"].shape
    changes = {
        "too narrow": {"embeddings": good["embeddings"][:, :-1]},
        "too few rows": {"embeddings": good["embeddings"][:-1]},
        "flat": {"embeddings": good["embeddings"].ravel()},
        "of one number": {"embeddings": np.float32(0)},
        "not finite": {"embeddings": np.full((n_words, width), np.nan, np.float32)},
        "of texts": {"embeddings": good["embeddings"].astype(str)},
        "numbers below 0": {"ids": good["ids"] - 1000},
        "numbers too high": {"ids": good["ids"] + 10**6},
        "fractions as numbers": {"ids": good["ids"].astype(float)},
        "too few words": {"tokens": good["tokens"][:-1]},
        "no words": {name: good[name][:0] for name in ("tokens", "ids", "embeddings")},
        "another encoder": {"encoder": np.array("ViT-B-16")},
        "other weights": {"encoder_fingerprint": np.array("0" * 64)},
        "other language weights": {"language_model_fingerprint": np.array("0" * 64)},
        "objects": {"tokens": np.array([Intruder()], dtype=object)},
    }
    for name, change in changes.items():
        arrays = good | change
        del arrays[CHECKSUM]
        PromptEmbeddings(**arrays).write(folder / f"{name}.npz")  # its checksum is right
    np.savez(folder / "incomplete.npz", **{k: v for k, v in good.items() if k != "ids"})
    np.savez(folder / "changed.npz", **(good | {"embeddings": good["embeddings"] + 1}))
    np.savez(folder / "no checksum.npz", **{k: v for k, v in good.items() if k != CHECKSUM})
    assert PromptEmbeddings.read(tiny_embeddings())


def pictures(folder):
    """Make folders of pictures that cannot be shown."""
    for name in ("few", "broken", "folders"):
        (folder / name).mkdir(parents=True)
    (folder / "few" / "one.png").write_bytes(PNG)
    for number in range(50):
        (folder / "broken" / f"{number}.png").write_bytes(PNG[: 20 + number])
        (folder / "folders" / f"{number}.png").mkdir()


def runs(folder):
    """Write folders that are nearly those of a run."""
    header = "env_steps,rollout/return_mean\n"
    tables = {
        "no rows": header,
        "no table": None,
        "text": header + "1,hello\n",
        "short row": header + "1\n",
        "long row": header + "1,2,3\n",
        "no steps": "steps,rollout/return_mean\n1,2\n",
        "other columns": "env_steps,other\n1,2\n",
        "long row, other columns": "env_steps,other\n1,2,3\n",
        "binary": PNG,
        "huge field": header + "1," + "9" * 200_000 + "\n",
    }
    for name, content in tables.items():
        run = folder / name
        run.mkdir(parents=True)
        (run / "config.json").write_text(json.dumps(RUN))
        if content is not None:
            raw = content if isinstance(content, bytes) else content.encode()
            (run / "metrics.csv").write_bytes(raw)
    for name in ("array", "truncated", "deep arrays", "unknown key", "latin-1", "null"):
        run = folder / f"config {name}"
        run.mkdir()
        (run / "config.json").write_bytes(JSON_FILES[name])
        (run / "metrics.csv").write_text(header + "1,2\n")
    for name, value in (("model", ["HELM"]), ("env", 1), ("seed", [0]), ("seed", "0")):
        run = folder / f"{name} is {value!r}"
        run.mkdir()
        (run / "config.json").write_text(json.dumps(RUN | {name: value}))
        (run / "metrics.csv").write_text(header + "1,2\n")
    (folder / "good").mkdir()
    (folder / "good" / "config.json").write_text(json.dumps(RUN))
    (folder / "good" / "metrics.csv").write_text(header + "1,2\n")


def episodes(folder):
    """Write episodes with one thing wrong in each."""
    folder.mkdir()
    for name, arrays in EPISODES.items():
        np.savez(folder / name, **arrays)
