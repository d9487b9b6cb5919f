"""The bad inputs by name: command lines of a program that no generator would think of."""

import json

from settings import all_settings
from tests.bad_inputs.bad_envs import ACTIONS, BEHAVIOURS, OBSERVATIONS, PARTS
from tests.bad_inputs.harness import settings
from tests.bad_inputs.workshop import EPISODES, FOREIGN, JSON_FILES, MODULES, TINY_RUN
from tests.published_models import TRANSFORMER_XL
from tests.tiny_clip import tiny_clip, tiny_settings

SETTINGS = all_settings()
LONG, ZERO, BIG = "x" * 5000, "a\0b", "9" * 5000

NO_NUMBERS = (
    *("many", "", "NaN", "-1", "1e999", "Infinity", "-Infinity", "[1]", "{}", "true", "1 2", "１2"),
    *("--1", "0x10", "1_000", "9" * 400, "-" + "9" * 400, BIG, "1e300", "[" * 9999),
)
NOT_TRUE_OR_FALSE = ("0", "1", "True", "yes", "", "[true]", '"true"', "truefalse")
NO_CHOICES = ("", "liner", "None", "exp,linear", "null")
RUN_IDS = (
    *("", ".", "..", "../x", "a/b", "/x", "a/", ".x", "-x", "--", "a b", "a\nb", "a\n", ZERO, "é"),
    *("\u202ex", "\udcff", "１", "x" * 121, LONG, "a\\b", "~", "$HOME", "*", "a:b", "%2e"),
)
ENVS = (
    *(
        "Pong",
        "MiniGrid-",
        "MiniGrid-Nowhere-v0",
        "MiniGrid-Empty-5x5-v0/..",
        "../x",
        "/x",
        "..",
        "-",
    ),
    *("MiniGrid-Empty-5x5-v0\n", "maze ", "MAZE", "psychlab_x", "RandomMaze-v0/x", ZERO, "\ud800"),
    *("psychlab_continuous_recognition", "MiniWorld-x", "MiniGrid-" + "x" * 10**6, "T-Maze-v0"),
    *("TMazePassive", "TMazePassive-v1", "VisualMatch-v0x", "HousekeepTex-v0", "Housekeep-v0"),
    *("Crafter-v0", "Crafter", "crafter-v1", "CrafterReward-v1", "BabyAI-GoToRedBal-v0"),
)
NO_ENVIRONMENTS = (
    *("CartPole", "cartpole-v1", "CartPole-v9", "Pendulum-v1", "MountainCarContinuous-v0"),
    *("popgym-", "popgym-RepeatPrevious-v0", "popgym-repeatfirsteasy-v0", "popgym"),
    *("popgym-PositionOnlyPendulumEasy-v0", "GymV26Environment-v0", "ALE/Pong-v5", "phys2d/x"),
    *(":", ":CartPole-v1", "nowhere:Mine-v0", "nowhere.mine:Mine-v0", "no where:Mine-v0"),
    *("..:Mine-v0", ".modules:Mine-v0", "a:b:c", "modules/raises.py:Mine-v0", f"{ZERO}:Mine-v0"),
    *(f"{LONG}:Mine-v0", "é:Mine-v0", "\ud800:Mine-v0", "json:Mine-v0", "envs:Mine-v0", "1:2"),
)
NO_ARGUMENTS = (
    *("", "[]", "3", "null", "true", "{", "{}x", '"text"', "length=3", '{"a": NaN}', "{1: 2}"),
    *('{"no_such": 1}', '{"render_mode": "human"}', '{"id": "x"}', '{"a": ' * 9999),
    *('{"disable_env_checker": true}', '{"max_episode_steps": "many"}', '{"a": -Infinity}'),
)
MODELS = ("helm", "GTP", "..", "../HELM", "HELM/", "HELM\n", "models.helm:Helm", "__class__", LONG)
DEVICES = (
    *("abacus", "meta", "CPU", "cpu\n", "cuda:99", "cuda:-1", "cuda:" + "9" * 20, "xpu", "mps"),
    *("xla", "hpu", "vulkan", "/dev/null", ZERO, LONG),
)
LANGUAGE_MODELS = (
    *("folder", "..", "nowhere/", "foreign/text", "someone/some-model", "a/b/c", ZERO, LONG, "é"),
    *("https://example.org/model", "all-MiniLM-L6", "a\nb", "-", " ", "\ud800"),
)
ENCODERS = ("ViT-B16", "tiny_vit", "../tiny-vit", "", ZERO, LONG, "a\nb")
PATHS = ("nowhere", "nowhere/x", "foreign/text/x", ZERO, LONG, "a\nb", "\ud800")
FILES = (*PATHS, "folder", *(f"foreign/{name}" for name in FOREIGN))
OUTPUTS = ("", "picture", "picture.xyz", "nowhere/x.png", "folder", "foreign/text/x.png", LONG)

FROM_REPLAY = {
    **{"algorithm": "DQN", "model": "LSTM", "env": "TMazePassive-v0", "length": 4},
    **{"device": "cpu", "n_envs": 1, "n_steps": 20, "batch_size": 2, "media_minutes": "null"},
}
CNN = TINY_RUN | {"model": "CNN"}
TOLD = TINY_RUN | tiny_settings("HELM") | {"model": "HELM", "env": "BabyAI-GoToObjS4-v0"}
# Settings that contradict one another, or that nothing in the run reads.
CONTRADICTIONS = (
    (TINY_RUN, "n_envs=3 n_rollout_steps=5 n_batches=4"),
    (TINY_RUN, "n_envs=1024 n_rollout_steps=16777216", "n_envs=1 n_rollout_steps=2 n_batches=4"),
    (TINY_RUN, "lr_decay=linear_burn_in lr_decay_start=0.5 lr_decay_end=0.5", "missions=true"),
    (TINY_RUN, "replay_capacity=50", "context_length=5", "tau=0.1", "warmup_episodes=3"),
    (TINY_RUN, "house_rooms=2", "crafter_length=5", "env=ContinuousRecognition-v0 length=3"),
    (TINY_RUN, "length=3", "env=VisualMatch-v0 door_order=episodes"),
    (FROM_REPLAY, "context_length=0", "topk=2", "beta=1", "mem_len=4", "n_epochs=2"),
    (FROM_REPLAY, "n_rollout_steps=8", "max_grad_norm=1", "lr_decay=linear", "temperature=0.2"),
    (FROM_REPLAY, "bootstrap_truncated=true", "shared_encoder=true", "frozen_dtype=bfloat16"),
    (FROM_REPLAY, "model=CNN-PPO", "algorithm=dqn", "algorithm=TD3", "model=HELMv2"),
    (FROM_REPLAY, "replay_capacity=10 context_length=10", "model=HELM retrieval_colours=each"),
    (FROM_REPLAY, "model=SHELM", "model=GPT mem_len=0", "model=GPT memory_width=8 memory_heads=3"),
    (FROM_REPLAY | {"algorithm": "SAC"}, "temperature=-1", "target_entropy=1.5", "gae_lambda=0.9"),
    (FROM_REPLAY | {"algorithm": "SAC"}, "model=Impala-PPO", "epsilon_final=0.1", "clip_range=0.1"),
    (CNN, "curiosity=rnd", "curiosity=RDN", "curiosity=rewards.curiosity:NovelD"),
    (CNN, "curiosity_weight=1", "task_reward_weight=0.5", "curiosity=RND noveld_alpha=0.5"),
    (
        CNN,
        "curiosity=RND apt_neighbours=3",
        "curiosity=RND curiosity_weight=0 task_reward_weight=0",
    ),
    (CNN, "curiosity=RND curiosity_features=memory", "curiosity=APT icm=ELLM"),
    (CNN, "curiosity=APT apt_neighbours=20 apt_group=10"),
    (TOLD, "curiosity=APT curiosity_features=observation", "text_to=nobody", "missions=maybe"),
    (TOLD, "text_to=both text_tokens=4 mem_len=4", "env=RandomMaze-v0 text_to=memory"),
    (CNN | {"env": "BabyAI-GoToObjS4-v0"}, "text_to=memory", "sentence_encoder=nowhere/"),
    (CNN | {"env": "BabyAI-GoToObjS4-v0"}, f"sentence_encoder={TRANSFORMER_XL}"),
    (CNN | {"env": "TMazePassive-v0"}, "door_order=episode", "stimuli=pictures", "model=SHELM"),
    (CNN | {"env": "KeyToDoor-v0"}, "door_order=environment", "length=100001", "length=null"),
    (CNN | {"env": "HousekeepText-v0"}, "house_rooms=1 house_things=16", "housekeep_scene=rs_int"),
    (CNN | {"env": "Housekeep-v0"}, "housekeep_folder=nowhere", "housekeep_episode=-1"),
    (CNN | {"env": "CrafterText-v0"}, "captions=learned", "captions=pixels", "crafter_actions=17"),
    (CNN | {"env": "Crafter-v1"}, "crafter_actions=good", "dying=false", "use_text=false"),
    (CNN | {"env": "MiniGrid-Empty-5x5-v0"}, "env_args={}", "env_processes=true"),
    (CNN | {"env": "popgym-RepeatFirstEasy-v0"}, "env_args={}", "env_processes=true"),
)


def each(option, values, *command):
    """Return the command with each of the values for an option, or for words without one."""
    return {f"{option}{value[:40]!r}": [*command, f"{option}{value}"] for value in values}


def wrong_values(name):
    """Return texts that are no value of a setting."""
    kinds, facts = SETTINGS[name].kinds, SETTINGS[name].metadata
    is_optional = type(None) in kinds
    more = ("nul", "None", "NULL") if is_optional else ("null",)
    if int in kinds:
        beyond = (str(facts["low"] - 1), str(facts["high"] + 1))
        return (*NO_NUMBERS, *more, *beyond, "1.5", "0.999999")
    if float in kinds:
        return (*NO_NUMBERS, *more, str(facts["low"] - 1), str(2 * facts["high"] + 1))
    if bool in kinds:
        return (*NOT_TRUE_OR_FALSE, *more)
    if not facts["choices"]:
        return ("",)
    return [text for text in NO_CHOICES if not (is_optional and text == "null")]


def settings_cases():
    """Return every setting with every text that is none of its values."""
    return {
        f"{name}={value[:20]}": settings(**{name: value})
        for name in SETTINGS
        for value in wrong_values(name)
    }


def contradiction_cases():
    """Return runs whose settings are right one by one."""
    cases = {}
    for base, *changes in CONTRADICTIONS:
        for change in changes:
            changed = base | dict(word.split("=", 1) for word in change.split())
            cases[f"{changed['model']} on {changed['env']}: {change}"] = settings(**changed)
    return cases


def main_cases():
    """Return the bad inputs of main.py but for values of settings."""
    good, pictures = settings(**TINY_RUN), TINY_RUN | {"env": "ContinuousRecognition-v0"}
    cases = each("--config=", [*(f"json/{name}" for name in JSON_FILES), *PATHS, "folder"])
    cases |= each("--run-id=", [*RUN_IDS, "good"], *good)
    for field, values in (("env", ENVS), ("model", MODELS), ("device", DEVICES)):
        cases |= each(f"--var={field}=", values, *good)
    folders = (*PATHS, "folder", "foreign/text", *(f"pictures/{n}" for n in ("few", "broken")))
    cases |= each("--var=stimuli=", (*folders, "pictures/folders"), *settings(**pictures))
    words = (
        "--vra=gamma=1",
        "--var",
        "train",
        "",
        "a\nb",
        "--var=gamma",
        "--var==1",
        f"--var={LONG}",
    )
    cases |= each("", (*words, f"--seed={BIG}", f"--seed={2**32}"))
    return cases | {"two seeds": ["--seed", "1", "2"]}


def model_cases(language_models, embeddings):
    """Return agents with pretrained parts that do not fit, or are not there."""
    helm, shelm = (
        TINY_RUN | {"model": "HELM"},
        TINY_RUN | tiny_settings("SHELM") | {"model": "SHELM"},
    )
    clip = settings(**(TINY_RUN | tiny_settings("HELMv2") | {"model": "HELMv2"}))
    names = [*LANGUAGE_MODELS, *(f"models/{name}" for name in language_models)]
    broken = ("foreign/other_clip.safetensors", "foreign/half_clip.safetensors")
    return {
        **each("--var=language_model=", names, *settings(**helm)),
        **each("--var=clip_encoder=", (*ENCODERS, "grid-clip"), *clip),
        **each("--var=clip_pretrained=", (*FILES, *broken), *clip),
        **each("--var=embeddings=", FILES, *settings(**shelm)),
        **each("--var=embeddings=embeddings/", embeddings, *settings(**shelm)),
        "too many layers": settings(**helm, language_model="models/good", n_layer=3),
        "out of reach": [*clip, *settings(clip_encoder="ViT-B-16", clip_pretrained="openai")],
        "more tokens than words": settings(**(shelm | {"topk": 100})),
        "more tokens than memory": settings(**(shelm | {"topk": 3, "mem_len": 2})),
    }


def environment_cases():
    """Return ids, arguments and environments of Gymnasium that nobody can be trained in."""
    module = "tests.bad_inputs.bad_envs"
    ids = [*NO_ENVIRONMENTS, *(f"modules.{name}:Mine-v0" for name in MODULES)]
    ids += [f"{module}:{name}" for name in ("", "Nothing-v0", "Bad", "bad-v0", "Bad-v0/x")]
    ids += [f"{module}:NoEnv-v0", f"{module}:NoPlace-v0", f"{module}.py:Bad-v0", f"x:{module}:Bad"]
    bad = settings(**(CNN | {"env": f"{module}:Bad-v0"}))
    kinds = {"behaviour": BEHAVIOURS, "observations": OBSERVATIONS, "actions": ACTIONS}
    wrong = [
        json.dumps({kind: n}) for kind, names in (kinds | {"parts": PARTS}).items() for n in names
    ]
    shelm = TINY_RUN | tiny_settings("SHELM") | {"model": "SHELM", "env": f"{module}:Stacked-v0"}
    return {
        **each("--var=env=", ids, *settings(**CNN)),
        **each("--var=env_args=", NO_ARGUMENTS, *settings(**(CNN | {"env": "CartPole-v1"}))),
        **each("--var=env_args=", wrong, *bad),
        "SHELM before a stack of frames": settings(**shelm, env_processes="false"),
    }


def eval_cases(checkpoints):
    """Return the bad inputs of eval.py."""
    good = ["--ckpt-path", "experiments/CNN-PPO/RandomMaze-v0/good/ckpt_last.pt"]
    maze = ["--ckpt-path", "experiments/CNN/TMazePassive-v0/maze/ckpt_last.pt"]
    cases = each("--ckpt-path=", [*FILES, *(f"checkpoints/{name}" for name in checkpoints)])
    for name in ("model elsewhere", "env elsewhere", "env absolute", "unknown model"):
        cases[f"{name}, at random"] = [f"--ckpt-path=checkpoints/{name}.pt", "--random"]
    numbers = ("-1", "1.5", "many", "", "１", "1e3", BIG, str(10**12))
    lengths = ("0", "-1", "1.5", "many", "", "null", "100001", "1e999", BIG, ZERO)
    others = ("length", "=3", "", "lenght=3", "length=3 ,", "door_order=episode", "a\nb=1", LONG)
    not_of_env = ("gamma=0.5", "gamma=many", "n_envs=3", "env=TMazeActive-v0", "seed=1")
    return {
        **cases,
        **each("--n-episodes=", ("0", *numbers), *good),
        **each("--seed=", (*numbers[:3], str(2**32), BIG), *good),
        **each("--device=", DEVICES, *good),
        **each("--var=length=", lengths, *maze),
        **each("--var=", (*others, *not_of_env), *maze),
        **each(
            "", ("--report=yes", "--video=3", "--reprot", "--video=", "more", "--rnadom"), *good
        ),
        "one good setting, one bad": [*maze, "--var=length=3", "--var=stimuli=here"],
        "a setting of another environment": [*good, "--var=length=3"],
        "a setting of an environment, at random": [*good, "--random", "--var=length=3"],
        "nothing": [],
    }


def prepare_cases(vocabularies):
    """Return the bad inputs of prepare_embeddings.py."""
    good = ["--clip-encoder=tiny-vit", f"--clip-pretrained={tiny_clip()}", "--device=cpu"]
    good += [f"--language-model={TRANSFORMER_XL}", "--data-folder=folder"]
    models = [*LANGUAGE_MODELS, *(f"models/{name}" for name in vocabularies)]
    folders = ("foreign/text", "foreign/text/x", ZERO, LONG, "/dev/null/x")
    return {
        **each("--suite=", ("minigird", "", "../minigrid", LONG), *good),
        **each("--clip-encoder=", ("ViT-B16", "", ZERO, LONG), *good),
        **each("--clip-pretrained=", FILES, *good),
        **each("--language-model=", models, *good),
        **each("--data-folder=", folders, "--device=cpu"),
        **each("--device=", DEVICES, *good),
        **each("", ("more", "--siute=all")),
    }


def plot_cases(runs):
    """Return the bad inputs of plot.py."""
    return {
        **each("", [*PATHS, "folder", "foreign/text", *(f"runs/{name}" for name in runs)]),
        **each("--output=", (*OUTPUTS, "/dev/null/x.png"), "runs/good"),
        **each("--metric=", ("rollout/retrun_mean", "a\nb"), "runs/good"),
        **{"nothing": [], "one good, one bad": ["runs/good", "folder"]},
    }


def sweep_cases():
    """Return the bad inputs of sweep.py."""
    good = settings(**TINY_RUN)
    addresses = ("", "x", ":1", "127.0.0.1:1", "127.0.0.1:x", "127.0.0.1:99999999", ZERO)
    lists = ("modle=HELM,CNN-PPO", "learning_rate=1e-4,much", "seed=1,1", "save_ckpt=false")
    return {
        **each("--config=", (*PATHS, "folder")),
        **each("--seeds=", ("0", "-1", "1.5", "many", "", BIG), *good),
        **each("--cpus=", ("0", "1.5", "many", BIG), *good),
        **each("--gpus=", ("-1", "x", "1.5", "nan", "inf", BIG), *good),
        **each("--address=", addresses, *good),
        **each("--output=", OUTPUTS, *good),
        **each("--var=", lists, *good),
        **each("", ("--agents=LSTM", "more", "--sedes=2"), *good),
        "seeds named twice": [*good, "--seeds=2", "--var=seed=1"],
    }


def analysis_cases(checkpoints):
    """Return the bad inputs of the analyses."""
    files = [*FILES, *(f"checkpoints/{name}" for name in checkpoints)]
    numbers = ("0", "-1", "1.5", "many", BIG)
    outputs = ("foreign/text", "foreign/text/x", ZERO, LONG, "/dev/null/x")
    return {
        **each("", [*files, *(f"episodes/{name}" for name in EPISODES)], "words"),
        **each("--output=", outputs, "words"),
        **each("--n-episodes=", numbers, "words"),
        **each("--most=", numbers, "words"),
        **each("", ("wrods", "--beta=1")),
        **{"nothing": [], "no such option": ["words", "-x"], "beta": ["distances", "--beta=much"]},
    }
