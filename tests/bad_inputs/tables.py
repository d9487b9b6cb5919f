"""The bad inputs by name: (program, command line)."""

import json

from tests.bad_inputs.bad_envs import ACTIONS, BEHAVIOURS, OBSERVATIONS, PARTS
from tests.bad_inputs.harness import settings
from tests.bad_inputs.workshop import EPISODES, JSON_FILES, MODULES, TINY_RUN
from tests.published_models import TRANSFORMER_XL
from tests.tiny_clip import tiny_clip, tiny_settings

LONG = "x" * 5000
ZERO = "a\0b"
BIG = "9" * 5000

RUN_IDS: tuple[str, ...] = (
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/x",
    "a/",
    ".x",
    "-x",
    "--",
    "a b",
    "a\nb",
    "a\n",
    ZERO,
)
RUN_IDS += (
    "é",
    "\u202ex",
    "\udcff",
    "１",
    "x" * 121,
    LONG,
    "a\\b",
    "~",
    "$HOME",
    "*",
    "a:b",
    "%2e",
)

ENVS: tuple[str, ...] = (
    "Pong",
    "MiniGrid-",
    "MiniGrid-Nowhere-v0",
    "MiniGrid-Empty-5x5-v0/..",
    "../x",
    "/x",
    "..",
)
ENVS += ("MiniGrid-Empty-5x5-v0\n", "maze ", "MAZE", "mazes", "psychlab_x", "RandomMaze-v0/x", ZERO)
ENVS += ("psychlab_continuous_recognition", "MiniWorld-x", "MiniGrid-" + "x" * 10**6, "\ud800", "-")

NO_ENVIRONMENTS: tuple[str, ...] = (
    *("CartPole", "cartpole-v1", "CartPole-v9", "Pendulum-v1", "MountainCarContinuous-v0"),
    *("popgym-", "popgym-RepeatPrevious-v0", "popgym-repeatfirsteasy-v0", "popgym"),
    *("popgym-PositionOnlyPendulumEasy-v0", "GymV26Environment-v0", "ALE/Pong-v5", "phys2d/x"),
    *(":", ":CartPole-v1", "nowhere:Mine-v0", "nowhere.mine:Mine-v0", "no where:Mine-v0"),
    *("..:Mine-v0", ".modules:Mine-v0", "a:b:c", "modules/raises.py:Mine-v0", f"{ZERO}:Mine-v0"),
    *(f"{LONG}:Mine-v0", "é:Mine-v0", "\ud800:Mine-v0", "json:Mine-v0", "envs:Mine-v0", "1:2"),
)
NO_ARGUMENTS: tuple[str, ...] = (
    *("", "[]", "3", "null", "true", "{", "{}x", '"text"', "length=3", '{"a": NaN}', "{1: 2}"),
    *('{"no_such": 1}', '{"render_mode": "human"}', '{"id": "x"}', '{"a": ' * 9999),
    *('{"disable_env_checker": true}', '{"max_episode_steps": "many"}', '{"a": -Infinity}'),
)

MODELS = ("helm", "GTP", "..", "../HELM", "HELM/", "HELM\n", "models.helm:Helm", "__class__", LONG)

DEVICES: tuple[str, ...] = (
    "abacus",
    "meta",
    "CPU",
    "cpu\n",
    "cuda:99",
    "cuda:-1",
    "cuda:" + "9" * 20,
    "xpu",
    "mps",
)
DEVICES += ("xla", "hpu", "vulkan", "/dev/null", ZERO, LONG)

LANGUAGE_MODELS: tuple[str, ...] = (
    "folder",
    "..",
    "nowhere/",
    "foreign/text",
    "someone/some-model",
    "a/b/c",
    ZERO,
)
LANGUAGE_MODELS += (
    LONG,
    "https://example.org/model",
    "all-MiniLM-L6",
    "é",
    "a\nb",
    "-",
    " ",
    "\ud800",
)

FOREIGN: tuple[str, ...] = (
    "empty",
    "text",
    "picture.png",
    "pickle.pkl",
    "intruder.pt",
    "old_intruder.pt",
    "list.pt",
)
FOREIGN += ("hidden_intruder.pt", "array.npy", "objects.npy", "objects.npz", "arrays.npz")
FOREIGN += ("other.safetensors", "script.pt")

PATHS = ("nowhere", "nowhere/x", "foreign/text/x", ZERO, LONG, "a\nb", "\ud800")


def main_cases():
    """Return the bad inputs of main.py but for values of settings."""
    cases = {f"config {name}": ["--config", f"json/{name}"] for name in JSON_FILES}
    cases |= {f"config at {path[:20]!r}": ["--config", path] for path in (*PATHS, "folder")}
    good = settings(**TINY_RUN)
    cases |= {f"run id {name[:20]!r}": [*good, f"--run-id={name}"] for name in RUN_IDS}
    cases["run id in use"] = [*good, "--run-id=good"]
    for field, values in (("env", ENVS), ("model", MODELS), ("device", DEVICES)):
        for value in values:
            command = settings(**(TINY_RUN | {field: value}))
            cases[f"{field} {value[:40]!r}"] = command
    cases |= {
        "no such option": ["--vra", "gamma=1"],
        "option without value": ["--var"],
        "words": ["train", "please"],
        "an empty word": [""],
        "a word with a line break": ["a\nb"],
        "setting without value": ["--var", "gamma"],
        "setting without name": ["--var", "=1"],
        "setting of 5000 signs": ["--var", LONG],
        "two seeds": ["--seed", "1", "2"],
        "seed of 5000 digits": ["--seed", BIG],
        "seed beyond 32 bits": ["--seed", str(2**32)],
        "rollout not divisible": settings(n_envs=3, n_rollout_steps=5, n_batches=4),
        "rollout too large": settings(n_envs=1024, n_rollout_steps=2**24),
        "more minibatches than samples": settings(n_envs=1, n_rollout_steps=2, n_batches=4),
        "decay ends before it starts": settings(
            lr_decay="linear_burn_in", lr_decay_start=0.5, lr_decay_end=0.5
        ),
    }
    return cases


FROM_REPLAY = {
    **{"algorithm": "DQN", "model": "LSTM", "env": "TMazePassive-v0", "length": 4},
    **{"device": "cpu", "n_envs": 1, "n_steps": 20, "batch_size": 2, "media_minutes": "null"},
}
BY_SAC = FROM_REPLAY | {"algorithm": "SAC"}
BY_GPT = FROM_REPLAY | {"model": "GPT"}


OUT_OF_REPLAYS_RANGE = {
    "context_length": ("0", "-2", "1.5", "10000000"),
    "replay_capacity": ("1", "-1", "100000000000"),
    "batch_size": ("0", "10000000"),
    "tau": ("1.5", "NaN"),
    "epsilon_final": ("-0.1", "2"),
    "epsilon_share": ("1.1", "null"),
    "warmup_episodes": ("0",),
    "updates_per_step": ("-1", "1001"),
    "head_width": ("0",),
    "observation_embedding": ("0", "16385"),
    "action_embedding": ("-1",),
    "eval_steps": ("-1",),
    "eval_episodes": ("0",),
    "length": ("0",),
}


def replay_cases():
    """Return the bad inputs of runs with DQN and SAC."""
    cases = {
        f"{name}={value}": settings(**(FROM_REPLAY | {name: value}))
        for name, values in OUT_OF_REPLAYS_RANGE.items()
        for value in values
    }
    by_sac = {"temperature": -1, "target_entropy": 1.5, "temperature_learning_rate": 11}
    cases |= {f"SAC, {name}": settings(**BY_SAC, **{name: v}) for name, v in by_sac.items()}
    read_by_others = {
        "DQN": {"topk": 2, "beta": 1, "mem_len": 4, "n_epochs": 2, "n_rollout_steps": 8}
        | {"max_grad_norm": 1, "lr_decay": "linear", "bootstrap_truncated": "true"}
        | {"temperature": 0.2, "shared_encoder": "true", "frozen_dtype": "bfloat16"},
        "SAC": {"epsilon_final": 0.1, "clip_range": 0.1, "ent_coef": 0.1, "gae_lambda": 0.9},
        "PPO": {"replay_capacity": 50, "context_length": 5, "tau": 0.1, "warmup_episodes": 3},
    }
    for algorithm, others in read_by_others.items():
        run = TINY_RUN if algorithm == "PPO" else FROM_REPLAY | {"algorithm": algorithm}
        for name, value in others.items():
            cases[f"{name} with {algorithm}"] = settings(**run, **{name: value})
    return cases | {
        "CNN-PPO by DQN": settings(**(FROM_REPLAY | {"model": "CNN-PPO"})),
        "Impala-PPO by SAC": settings(**(BY_SAC | {"model": "Impala-PPO"})),
        "algorithm dqn": settings(**(FROM_REPLAY | {"algorithm": "dqn"})),
        "algorithm TD3": settings(**(FROM_REPLAY | {"algorithm": "TD3"})),
        "a ring shorter than a sequence": settings(
            **FROM_REPLAY, replay_capacity=10, context_length=10
        ),
        "heads that do not divide": settings(**BY_GPT, memory_width=8, memory_heads=3),
        "no memory length": settings(**BY_GPT, mem_len=0),
        "HELMv2 without images": settings(**(FROM_REPLAY | {"model": "HELMv2"})),
        "colours without images": settings(
            **(FROM_REPLAY | {"model": "HELM", "retrieval_colours": "each"})
        ),
        "SHELM without images": settings(**(FROM_REPLAY | {"model": "SHELM"})),
    }


def curiosity_cases():
    """Return intrinsic rewards that there are not, and settings that none reads or can have."""
    run = TINY_RUN | {"model": "CNN"}
    rnd, apt = run | {"curiosity": "RND"}, run | {"curiosity": "APT"}
    cases = {
        f"curiosity {name[:20]!r}": settings(**run, curiosity=name)
        for name in ("", "rnd", "RDN", "ICM", "none", "rewards.curiosity:NovelD", ZERO)
    }
    out_of_range = {
        "curiosity_weight": ("-1", "NaN", "1e7", "null"),
        "curiosity_features": ("pixels", "", "null"),
        "curiosity_width": ("0", "16385"),
        "curiosity_batches": ("0", "1.5"),
    }
    for name, values in out_of_range.items():
        cases |= {f"{name}={value}": settings(**rnd, **{name: value}) for value in values}
    text = tiny_settings("HELM") | TINY_RUN | {"model": "HELM", "env": "BabyAI-GoToObjS4-v0"}
    return cases | {
        "a weight of no curiosity": settings(**run, curiosity_weight=1),
        "the task's weight alone": settings(**run, task_reward_weight=0.5),
        "NovelD's alpha with RND": settings(**rnd, noveld_alpha=0.5),
        "neighbours with RND": settings(**rnd, apt_neighbours=3),
        "nothing is rewarded": settings(**rnd, curiosity_weight=0, task_reward_weight=0),
        "the memory of CNN": settings(**rnd, curiosity_features="memory"),
        "more neighbours than steps": settings(**apt, apt_neighbours=20, apt_group=10),
        "icm of nobody": settings(**apt, icm="ELLM"),
        "text of another shape": settings(
            **text, curiosity="APT", curiosity_features="observation"
        ),
    }


def language_model_cases(names):
    """Return HELM with language models of the workshop's folder `models`, and with odd names."""
    run = TINY_RUN | {"model": "HELM"}
    values = [*LANGUAGE_MODELS, *(f"models/{name}" for name in names)]
    cases = {
        f"language model {value[:40]!r}": settings(**run, language_model=value) for value in values
    }
    bert = run | {"language_model": "models/good"}
    return cases | {"too many layers": settings(**bert, n_layer=3)}


def encoder_cases():
    """Return HELMv2 with encoders that cannot be fetched."""
    run = TINY_RUN | tiny_settings("HELMv2") | {"model": "HELMv2"}
    cases = {}
    for name in ("ViT-B16", "tiny_vit", "../tiny-vit", ZERO, LONG, "a\nb", "grid-clip"):
        cases[f"encoder {name[:20]!r}"] = settings(**(run | {"clip_encoder": name}))
    weights = [*PATHS, "folder", *(f"foreign/{name}" for name in FOREIGN)]
    for name in (*weights, "foreign/other_clip.safetensors", "foreign/half_clip.safetensors"):
        cases[f"weights {name[:40]!r}"] = settings(**(run | {"clip_pretrained": name}))
    hub = {"clip_encoder": "ViT-B-16", "clip_pretrained": "openai"}
    cases["weights out of reach"] = settings(**(run | hub))
    return cases


def embeddings_cases(names):
    """Return SHELM with files of embeddings that do not fit."""
    run = TINY_RUN | tiny_settings("SHELM") | {"model": "SHELM"}
    files = [*PATHS, "folder", *(f"foreign/{name}" for name in FOREIGN)]
    files += [f"embeddings/{name}" for name in names]
    cases = {
        f"embeddings {file[:40]!r}": settings(**(run | {"embeddings": file})) for file in files
    }
    return cases | {
        "more tokens than words": settings(**(run | {"topk": 100})),
        "more tokens than memory": settings(**(run | {"topk": 3, "mem_len": 2})),
    }


def text_cases():
    """Return what nobody can read sentences with, and sentences for nobody."""
    told = TINY_RUN | {"model": "CNN", "env": "BabyAI-GoToObjS4-v0"}
    read = told | tiny_settings("HELM") | {"model": "HELM"}
    encoders = ("nowhere/", "folder", "foreign/text", "a/b/c", ZERO, str(TRANSFORMER_XL))
    cases = {
        f"sentences by {name[:20]!r}": settings(**told, sentence_encoder=name) for name in encoders
    }
    for name, values in {
        "text_to": ("", "Memory", "nobody", "null"),
        "text_tokens": ("0", "513", "1.5", "many"),
    }.items():
        cases |= {f"{name}={value}": settings(**read, **{name: value}) for value in values}
    for value in ("maybe", "1", ""):
        cases[f"missions={value}"] = settings(**told, missions=value)
    maze = tiny_settings("HELM") | TINY_RUN | {"model": "HELM"}
    return cases | {
        "text for no language model": settings(**told, text_to="memory"),
        "a memory of no text": settings(**maze, text_to="memory"),
        "more tokens of text than memory": settings(
            **read, text_to="both", text_tokens=4, mem_len=4
        ),
        "missions in a maze": settings(**TINY_RUN, missions="true"),
        "no such level": settings(**(told | {"env": "BabyAI-GoToRedBal-v0"})),
    }


def memory_task_cases():
    """Return lengths and orders of doors that no memory task has."""
    cases = {}
    for env in ("TMazePassive-v0", "TMazeActive-v0", "VisualMatch-v0", "KeyToDoor-v0"):
        run = TINY_RUN | {"env": env, "model": "CNN"}
        for value in ("0", "-1", "100001", "1.5", "many", "null"):
            cases[f"{env} of length {value}"] = settings(**run, length=value)
    maze = TINY_RUN | {"model": "CNN", "env": "TMazePassive-v0"}
    for value in ("", "Episode", "episodes", "environments", "null", "true", ZERO):
        command = settings(**(TINY_RUN | {"env": "VisualMatch-v0"}), door_order=value)
        cases[f"doors in order {value!r}"] = command
    cases["doors in a maze"] = settings(**maze, door_order="episode")
    cases["doors that need a key"] = settings(
        **(maze | {"env": "KeyToDoor-v0"}), door_order="environment"
    )
    cases["pictures in a maze"] = settings(**maze, stimuli="pictures")
    for env in ("RandomMaze-v0", "ContinuousRecognition-v0"):
        cases[f"{env} with a length"] = settings(**(TINY_RUN | {"env": env}), length=3)
    for env in ("T-Maze-v0", "TMaze-v0", "TMazePassive", "TMazePassive-v1", "VisualMatch-v0x"):
        cases[f"no task {env}"] = settings(**(maze | {"env": env}))
    cases["SHELM, which needs images"] = settings(
        **(maze | tiny_settings("SHELM") | {"model": "SHELM"})
    )
    return cases


def household_cases():
    """Return houses that cannot be, and a simulator that is not there."""
    house = TINY_RUN | {"model": "CNN", "env": "HousekeepText-v0", "use_text": "false"}
    wrong = {
        "house_rooms": ("0", "7", "2.5"),
        "house_things": ("0", "21"),
        "house_misplaced": ("0", "9"),
        "house_steps": ("0", "null"),
        "use_text": ("maybe",),
    }
    cases = {
        f"{name}={value}": settings(**(house | {name: value}))
        for name, values in wrong.items()
        for value in values
    }
    simulator = TINY_RUN | {"model": "CNN", "env": "Housekeep-v0"}
    return cases | {
        "too many things for a kitchen": settings(**house, house_rooms=1, house_things=16),
        "a house in a maze": settings(**TINY_RUN, house_rooms=2),
        "a simulator's scene in words": settings(**house, housekeep_scene="rs_int"),
        "no such household": settings(**(house | {"env": "HousekeepTex-v0"})),
        "no simulator": settings(**simulator),
        "no folder of the simulator": settings(**simulator, housekeep_folder="nowhere"),
        "an episode before the first": settings(**simulator, housekeep_episode=-1),
    }


def crafter_cases():
    """Return games of Crafter that there are not."""
    text = TINY_RUN | {"env": "CrafterText-v0", "model": "CNN"}
    wrong = {
        "crafter_length": ("0", "-1", "1.5", "long", "1000001"),
        "crafter_actions": ("", "Good", "17", "null"),
        "crafter_image": ("grey", "rgb", "null"),
        "captions": ("", "pixels", "Learned", "null"),
        "use_text": ("maybe", "1", "null"),
        "dying": ("never", "null"),
    }
    cases = {
        f"CrafterText by {name} {value!r}": settings(**text, **{name: value})
        for name, values in wrong.items()
        for value in values
    }
    game = text | {"env": "Crafter-v1"}
    cases["CrafterText with nothing that reads its pictures"] = settings(**text, captions="learned")
    only_in_text = {"crafter_actions": "good", "dying": "false", "use_text": "false"}
    for name, value in (only_in_text | {"captions": "learned"}).items():
        cases[f"the unmodified game by {name}"] = settings(**game, **{name: value})
    cases["a maze by crafter_length"] = settings(**TINY_RUN, crafter_length=5)
    for env in ("Crafter-v0", "Crafter", "crafter-v1", "CrafterReward-v1", "CrafterText-v1"):
        cases[f"no game {env}"] = settings(**(game | {"env": env}))
    return cases


def environment_cases():
    """Return ids, arguments and environments of Gymnasium that nobody can be trained in."""
    module, run = "tests.bad_inputs.bad_envs", TINY_RUN | {"model": "CNN"}
    ids = [*NO_ENVIRONMENTS, *(f"modules.{name}:Mine-v0" for name in MODULES)]
    ids += [f"{module}:{name}" for name in ("", "Nothing-v0", "Bad", "bad-v0", "Bad-v0/x")]
    ids += [f"{module}:NoEnv-v0", f"{module}:NoPlace-v0", f"{module}.py:Bad-v0", f"x:{module}:Bad"]
    cases = {f"env {name[:60]!r}": settings(**(run | {"env": name})) for name in ids}
    cart_pole, bad = run | {"env": "CartPole-v1"}, run | {"env": f"{module}:Bad-v0"}
    for value in NO_ARGUMENTS:
        cases[f"arguments {value[:40]!r}"] = settings(**cart_pole, env_args=value)
    for env in ("RandomMaze-v0", "popgym-RepeatFirstEasy-v0", "MiniGrid-Empty-5x5-v0"):
        cases[f"arguments for {env}"] = settings(**(run | {"env": env}), env_args="{}")
        cases[f"processes for {env}"] = settings(**(run | {"env": env}), env_processes="true")
    kinds = {"behaviour": BEHAVIOURS, "observations": OBSERVATIONS, "actions": ACTIONS}
    for kind, names in (kinds | {"parts": PARTS}).items():
        for name in names:
            cases[f"{kind}: {name}"] = settings(**bad, env_args=json.dumps({kind: name}))
    shelm = bad | tiny_settings("SHELM") | {"model": "SHELM", "env_processes": "false"}
    cases["SHELM before a stack of frames"] = settings(**(shelm | {"env": f"{module}:Stacked-v0"}))
    return cases


def stimuli_cases():
    """Return folders without pictures to show."""
    run = TINY_RUN | {"env": "ContinuousRecognition-v0"}
    folders = (*PATHS, "folder", "foreign/text", "pictures/few", "pictures/broken")
    return {
        f"pictures {folder[:20]!r}": settings(**run, stimuli=folder)
        for folder in (*folders, "pictures/folders")
    }


def eval_cases(names):
    """Return the bad inputs of eval.py."""
    files = [*PATHS, "folder", *(f"foreign/{name}" for name in FOREIGN)]
    files += [f"checkpoints/{name}" for name in names]
    cases = {f"checkpoint {file[:40]!r}": ["--ckpt-path", file] for file in files}
    for name in ("model elsewhere", "env elsewhere", "env absolute", "unknown model"):
        path = f"checkpoints/{name}.pt"
        cases[f"{name}, at random"] = ["--ckpt-path", path, "--random"]
    good = ["--ckpt-path", "experiments/CNN-PPO/RandomMaze-v0/good/ckpt_last.pt"]
    for number in ("0", "-1", "1.5", "many", "", "１", "1e3", BIG, str(10**12)):
        cases[f"{number[:20]!r} episodes"] = [*good, f"--n-episodes={number}"]
    for number in ("-1", "1.5", "x", str(2**32), BIG):
        cases[f"seed {number[:20]!r}"] = [*good, f"--seed={number}"]
    for device in DEVICES:
        cases[f"device {device[:20]!r}"] = [*good, f"--device={device}"]
    maze = ["--ckpt-path", "experiments/CNN/TMazePassive-v0/maze/ckpt_last.pt"]
    for value in ("0", "-1", "1.5", "many", "", "null", "100001", "1e999", BIG, ZERO):
        cases[f"played at length {value[:20]!r}"] = [*maze, f"--var=length={value}"]
    for text in (
        "length",
        "=3",
        "",
        "lenght=3",
        "length=3 ,",
        "door_order=episode",
        "a\nb=1",
        LONG,
    ):
        cases[f"played with {text[:20]!r}"] = [*maze, f"--var={text}"]
    for text in ("gamma=0.5", "gamma=many", "n_envs=3", "env=TMazeActive-v0", "seed=1"):
        cases[f"played with {text}, which is not the environment's"] = [*maze, f"--var={text}"]
    cases["one good setting, one bad"] = [*maze, "--var=length=3", "--var=stimuli=here"]
    cases["a setting of another environment"] = [*good, "--var=length=3"]
    cases["a setting of an environment, at random"] = [*good, "--random", "--var=length=3"]
    for option in ("--report=yes", "--video=3", "--reprot", "--video=", "--report=../x.html"):
        cases[option] = [*good, option]
    return cases | {"nothing": [], "a word": [*good, "more"], "no such option": [*good, "--rnadom"]}


def prepare_cases(vocabularies):
    """Return the bad inputs of prepare_embeddings.py."""
    good = ["--clip-encoder=tiny-vit", f"--clip-pretrained={tiny_clip()}", "--device=cpu"]
    good += [f"--language-model={TRANSFORMER_XL}", "--data-folder=folder"]
    cases = {}
    for value in ("minigird", "", "../minigrid", LONG):
        cases[f"suite {value[:20]!r}"] = [*good, f"--suite={value}"]
    for value in ("ViT-B16", "", ZERO, LONG):
        cases[f"encoder {value[:20]!r}"] = [*good, f"--clip-encoder={value}"]
    for value in (*PATHS, "folder", *(f"foreign/{name}" for name in FOREIGN)):
        cases[f"weights {value[:40]!r}"] = [*good, f"--clip-pretrained={value}"]
    for value in (*LANGUAGE_MODELS, *(f"models/{name}" for name in vocabularies)):
        cases[f"language model {value[:40]!r}"] = [*good, f"--language-model={value}"]
    for value in ("foreign/text", "foreign/text/x", ZERO, LONG, "/dev/null/x"):
        cases[f"data folder {value[:20]!r}"] = ["--device=cpu", f"--data-folder={value}"]
    for value in DEVICES:
        cases[f"device {value[:20]!r}"] = [*good, f"--device={value}"]
    return cases | {"a word": ["more"], "no such option": ["--siute=all"]}


def plot_cases(names):
    """Return the bad inputs of plot.py."""
    cases = {f"run {path[:20]!r}": [path] for path in (*PATHS, "folder", "foreign/text")}
    cases |= {f"run {name}": [f"runs/{name}"] for name in names}
    outputs = ("", "picture", "picture.xyz", "nowhere/x.png", "folder", "foreign/text/x.png", LONG)
    for output in (*outputs, "/dev/null/x.png"):
        cases[f"output {output[:20]!r}"] = ["runs/good", f"--output={output}"]
    cases["metric"] = ["runs/good", "--metric=rollout/retrun_mean"]
    cases["metric with a line break"] = ["runs/good", "--metric=a\nb"]
    return cases | {"nothing": [], "one good, one bad": ["runs/good", "folder"]}


def sweep_cases():
    """Return the bad inputs of sweep.py."""
    good = settings(**TINY_RUN)
    cases = {f"settings {path[:20]!r}": [f"--config={path}"] for path in (*PATHS, "folder")}
    for option in ("seeds", "cpus"):
        for number in ("0", "-1", "1.5", "many", "", BIG):
            cases[f"{number[:20]!r} {option}"] = [*good, f"--{option}={number}"]
    for number in ("-1", "x", "1.5", "nan", "inf", BIG):
        cases[f"{number[:20]!r} GPUs"] = [*good, f"--gpus={number}"]
    for address in ("", "x", ":1", "127.0.0.1:1", "127.0.0.1:x", "127.0.0.1:99999999", ZERO):
        cases[f"address {address[:20]!r}"] = [*good, f"--address={address}"]
    for output in ("", "picture", "picture.xyz", "nowhere/x.png", "folder", LONG):
        cases[f"output {output[:20]!r}"] = [*good, f"--output={output}"]
    cases["an unknown setting"] = ["--var=modle=HELM,CNN-PPO"]
    cases["an agent of no file"] = [*good, "--agents=LSTM"]
    cases["one bad value of two"] = [*good, "--var=learning_rate=1e-4,much"]
    cases["the same run twice"] = [*good, "--var=seed=1,1"]
    cases["seeds named twice"] = [*good, "--seeds=2", "--var=seed=1"]
    cases["nothing saved"] = [*good, "--var=save_ckpt=false"]
    return cases | {"a word": [*good, "more"], "no such option": [*good, "--sedes=2"]}


def analysis_cases(names):
    """Return the bad inputs of the analyses."""
    files = [*PATHS, "folder", *(f"foreign/{name}" for name in FOREIGN)]
    files += [f"checkpoints/{name}" for name in names]
    files += [f"episodes/{name}" for name in EPISODES]
    cases = {f"source {file[:40]!r}": ["words", file] for file in files}
    for output in ("foreign/text", "foreign/text/x", ZERO, LONG, "/dev/null/x"):
        cases[f"output {output[:20]!r}"] = ["words", f"--output={output}"]
    for number in ("0", "-1", "1.5", "many", BIG):
        cases[f"{number[:20]!r} episodes"] = ["words", f"--n-episodes={number}"]
        cases[f"{number[:20]!r} words"] = ["words", f"--most={number}"]
    cases["beta"] = ["distances", "--beta=much"]
    return cases | {"nothing": [], "no such analysis": ["wrods"], "no such option": ["words", "-x"]}
