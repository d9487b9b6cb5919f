"""Bad inputs through the command lines: one line, status 2, nothing written, nothing run."""

import json
import math
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import main as main_program
from tests.bad_inputs.bad_envs import FAULTS
from tests.bad_inputs.gallery import (
    CLIP,
    FOREIGN,
    GOOD,
    HELM,
    HELM_GOOD,
    HELM_UNFINISHED,
    HELM_V2,
    JSON_FILES,
    MAZE_GOOD,
    METRICS,
    MODULES,
    PREPARED,
    SHELM,
    TINY,
    WORDS,
    XL,
)
from tests.bad_inputs.harness import TRACE, ended, refused, settings
from tests.bad_inputs.spoiling import a_folder, emptied, endless, flipped, halved, removed, value
from tests.published_models import TRANSFORMER_XL
from tests.tiny_clip import tiny_settings
from trainers.checkpoint import load_checkpoint
from utils.errors import UserError
from utils.given_settings import load_config
from utils.run_folder import check_run_id

property_test = examples(max_examples=100, deadline=None, database=None, derandomize=True)
LONG, ZERO, BIG = "x" * 5000, "a\0b", "9" * 5000

ENVS = (
    *("Pong", "MiniGrid-", "MiniGrid-Nowhere-v0", "MiniGrid-Empty-5x5-v0/..", "../x", "..", "-"),
    *("MiniGrid-Empty-5x5-v0\n", "psychlab_x", ZERO, "\ud800", "MiniGrid-" + "x" * 10**6),
    *("popgym", "popgym-RepeatPrevious-v0", "GymV26Environment-v0", "ALE/Pong-v5", "phys2d/x"),
    *(":", ":CartPole-v1", "nowhere.mine:Mine-v0", "no where:Mine-v0", "a:b:c", "json:Mine-v0"),
    *("..:Mine-v0", "modules/raises.py:Mine-v0", f"{LONG}:Mine-v0", "\ud800:Mine-v0"),
    *(f"modules.{name}:Mine-v0" for name in MODULES),
    *(f"tests.bad_inputs.bad_envs:{name}" for name in ("", "Bad", "Bad-v0/x", "NoEnv-v0")),
    "tests.bad_inputs.bad_envs:NoPlace-v0",
)
NO_ARGUMENTS = (
    *("", "[]", "3", "null", "true", "{", "{}x", '"text"', "length=3", '{"a": NaN}', "{1: 2}"),
    *('{"no_such": 1}', '{"render_mode": "human"}', '{"id": "x"}', '{"a": ' * 9999),
    *('{"disable_env_checker": true}', '{"max_episode_steps": "many"}', '{"a": -Infinity}'),
)
BAD_ENVS = [json.dumps({kind: name}) for kind, names in FAULTS.items() for name in names]
MODELS = ("helm", "GTP", "..", "../HELM", "HELM/", "HELM\n", "models.helm:Helm", "__class__", LONG)
DEVICES = (
    *("abacus", "meta", "CPU", "cpu\n", "cuda:99", "cuda:-1", "cuda:" + "9" * 20, "xpu", "mps"),
    *("/dev/null", ZERO, LONG),
)
LANGUAGE_MODELS = (
    *("folder", "..", "nowhere/", "foreign/text", "someone/some-model", "a/b/c", ZERO, LONG, "é"),
    *("https://example.org/model", "all-MiniLM-L6", "a\nb", "-", " ", "\ud800"),
)
PATHS = ("nowhere", "nowhere/x", "foreign/text/x", ZERO, LONG, "a\nb", "\ud800", "folder")
FILES = (*PATHS, *(f"foreign/{name}" for name in FOREIGN))
OUTPUTS = ("", "picture", "picture.xyz", "nowhere/x.png", "folder", "foreign/text/x.png", LONG)
COUNTS = ("-1", "1.5", "many", "", "１", "1e3", BIG, "1" + "0" * 12)
LENGTHS = ("0", "-1", "1.5", "many", "", "null", "100001", "1e999", BIG, ZERO)

PICTURED = TINY | {"env": "ContinuousRecognition-v0"}
CNN, T_MAZE, SWEPT = TINY | {"model": "CNN"}, {"env": "TMazePassive-v0"}, settings(**TINY)
BAD = CNN | {"env": "tests.bad_inputs.bad_envs:Bad-v0"}
STACKED = SHELM | {"env": "tests.bad_inputs.bad_envs:Stacked-v0", "env_processes": "false"}
VIT_B = settings(**(HELM_V2 | {"clip_encoder": "ViT-B-16"}))
PLAYED, PLAYED_MAZE = (["--ckpt-path", run] for run in (HELM_GOOD, MAZE_GOOD))
# A program, good words, an option, and the values of it that are refused behind those words.
COMMAND_LINES = [
    ("main", [], "--config=", [*(f"json/{name}" for name in JSON_FILES), *PATHS]),
    ("main", settings(**CNN), "--var=env=", ENVS),
    ("main", settings(**TINY), "--var=model=", MODELS),
    ("main", settings(**TINY), "--var=device=", DEVICES),
    ("main", settings(**PICTURED), "--var=recognition_stimuli=", [*PATHS, "few"]),
    ("main", settings(**(CNN | {"env": "CartPole-v1"})), "--var=env_args=", NO_ARGUMENTS),
    ("main", settings(**BAD), "--var=env_args=", BAD_ENVS),
    ("main", settings(**STACKED), "", ["--var=topk=1"]),
    ("main", settings(**HELM), "--var=language_model=", LANGUAGE_MODELS),
    ("main", settings(**HELM_V2), "--var=clip_encoder=", ["ViT-B16", "../tiny-vit", "", ZERO]),
    ("main", settings(**HELM_V2), "--var=clip_pretrained=", FILES),
    ("main", VIT_B, "--var=clip_pretrained=", ["openai"]),
    ("main", settings(**SHELM), "--var=embeddings=", FILES),
    ("main", settings(**SHELM), "--var=topk=", ["6", "many"]),
    ("main", settings(**SHELM), "--var=mem_len=", ["1"]),
    ("main", [], "", ["--vra=gamma=1", "--var", "train", "", "a\nb", "--var=gamma", "--var==1"]),
    ("main", [], "", [f"--var={LONG}", f"--seed={BIG}", f"--seed={2**32}", "--seed=1 2"]),
    ("eval", [], "", ["--n-episodes=1"]),
    ("eval", [], "--ckpt-path=", FILES),
    ("eval", PLAYED, "--n-episodes=", ["0", *COUNTS]),
    ("eval", PLAYED, "--seed=", [*COUNTS[:3], str(2**32), BIG]),
    ("eval", PLAYED, "--device=", DEVICES),
    ("eval", PLAYED, "", ["--report=yes", "--video=3", "--reprot", "--video=", "more", "--rnadom"]),
    ("eval", [*PLAYED, "--random"], "", ["--var=length=3", "--greedy", "--deterministic"]),
    ("eval", PLAYED_MAZE, "--var=length=", LENGTHS),
    ("eval", PLAYED_MAZE, "--var=", ["length", "=3", "", "lenght=3", "length=3 ,"]),
    ("eval", PLAYED_MAZE, "--var=", ["door_order=episode", "a\nb=1", LONG]),
    ("eval", PLAYED_MAZE, "--var=", ["gamma=0.5", "n_envs=3", "env=TMazeActive-v0"]),
    ("prepare", PREPARED, "--suite=", ["minigird", "", "../minigrid", LONG]),
    ("prepare", PREPARED[1:], "--clip-encoder=", ["ViT-B16", "", ZERO, LONG]),
    ("prepare", [*PREPARED[:1], *PREPARED[2:]], "--clip-pretrained=", FILES),
    ("prepare", [*PREPARED[:2], *PREPARED[3:]], "--language-model=", LANGUAGE_MODELS),
    ("prepare", PREPARED[:4], "--data-folder=", ["foreign/text", ZERO, LONG, "/dev/null/x"]),
    ("prepare", [*PREPARED[:3], PREPARED[4]], "--device=", DEVICES),
    ("prepare", PREPARED, "", ["more", "--siute=all"]),
    ("plot", [], "", [*PATHS, "foreign/text", *(f"runs/{name}" for name in METRICS)]),
    ("plot", [HELM_GOOD], "", ["folder"]),
    ("plot", [HELM_GOOD], "--output=", [*OUTPUTS, "/dev/null/x.png"]),
    ("plot", [HELM_GOOD], "--metric=", ["rollout/retrun_mean", "a\nb"]),
    ("sweep", [], "--config=", PATHS),
    ("sweep", SWEPT, "--seeds=", ["0", *COUNTS[:4], BIG]),
    ("sweep", SWEPT, "--cpus=", ["0", "1.5", "many", BIG]),
    ("sweep", SWEPT, "--gpus=", ["-1", "x", "1.5", "nan", "inf", BIG]),
    ("sweep", SWEPT, "--address=", ["", "x", ":1", "127.0.0.1:1", "127.0.0.1:x", ZERO]),
    ("sweep", SWEPT, "--output=", OUTPUTS),
    ("sweep", SWEPT, "--var=", ["learning_rate=1e-4,much", "seed=1,1"]),
    ("sweep", SWEPT, "", ["--var=save_ckpt=false", "--agents=LSTM", "more", "--sedes=2"]),
    ("sweep", [*settings(**TINY), "--seeds=2"], "", ["--var=seed=1"]),
    ("analysis", ["words"], "", FILES),
    ("analysis", ["words"], "--output=", ["foreign/text", ZERO, LONG, "/dev/null/x"]),
    ("analysis", ["words"], "--n-episodes=", ["0", *COUNTS[:3], BIG]),
    ("analysis", ["words"], "--most=", ["0", *COUNTS[:3], BIG]),
    ("analysis", ["words"], "", ["-x"]),
    ("analysis", [], "", ["wrods", "--beta=1"]),
    ("analysis", ["distances"], "", ["--beta=much"]),
]

FROM_REPLAY = {
    **{"algorithm": "DQN", "model": "LSTM", "env": "TMazePassive-v0", "length": 4},
    **{"device": "cpu", "n_envs": 1, "n_steps": 20, "batch_size": 2, "showcase_minutes": "null"},
}
TOLD = TINY | tiny_settings("HELM") | {"model": "HELM", "env": "BabyAI-GoToObjS4-v0"}
# Settings that contradict one another, or that nothing in the run reads.
CONTRADICTIONS = (
    (TINY, "n_envs=3 n_rollout_steps=5 n_batches=4", "house_rooms=2", "crafter_length=5"),
    (TINY, "n_envs=1024 n_rollout_steps=16777216", "n_envs=1 n_rollout_steps=2 n_batches=4"),
    (TINY, "lr_decay=linear_burn_in lr_decay_start=0.5 lr_decay_end=0.5", "minigrid_missions=true"),
    (TINY, "replay_capacity=50", "context_length=5", "tau=0.1", "warmup_episodes=3"),
    (TINY, "length=3", "env=VisualMatch-v0 door_order=episodes"),
    (TINY, "env=ContinuousRecognition-v0 length=3"),
    (FROM_REPLAY, "context_length=0", "topk=2", "beta=1", "mem_len=4", "n_epochs=2"),
    (FROM_REPLAY, "n_rollout_steps=8", "max_grad_norm=1", "lr_decay=linear", "temperature=0.2"),
    (FROM_REPLAY, "bootstrap_truncated=true", "shared_encoder=true", "frozen_dtype=bfloat16"),
    (FROM_REPLAY, "model=CNN-PPO", "algorithm=dqn", "algorithm=TD3", "model=HELMv2"),
    (FROM_REPLAY, "replay_capacity=10 context_length=10", "model=HELM retrieval_channels=each"),
    (FROM_REPLAY, "curiosity=E3B", "curiosity=RND e3b_ridge=1", "curiosity=E3B e3b_ridge=0"),
    (FROM_REPLAY, "model=SHELM", "model=GPT mem_len=0", "model=GPT memory_width=8 memory_heads=3"),
    (FROM_REPLAY | {"algorithm": "SAC"}, "temperature=-1", "target_entropy=1.5", "gae_lambda=0.9"),
    (FROM_REPLAY | {"algorithm": "SAC"}, "model=Impala-PPO", "epsilon_final=0.1", "clip_range=0.1"),
    (CNN, "model=FFM ffm_periods=1,0", "model=FFM ffm_periods=1,two", "model=FFM ffm_periods="),
    (CNN, "curiosity=rnd", "curiosity=RDN", "curiosity=rewards.curiosity:NovelD"),
    (CNN, "curiosity_weight=1", "task_reward_weight=0.5", "curiosity=RND noveld_alpha=0.5"),
    (CNN, "curiosity=RND apt_neighbours=3", "curiosity=APT apt_neighbours=20 apt_group=10"),
    (CNN, "curiosity=RND curiosity_weight=0 task_reward_weight=0"),
    (CNN, "curiosity=RND curiosity_features=memory", "curiosity=APT curiosity_icm=ELLM"),
    (TOLD, "curiosity=APT curiosity_features=observation", "text_reader=nobody"),
    (TOLD, "minigrid_missions=maybe"),
    (TOLD, "text_reader=both text_tokens=4 mem_len=4", "env=RandomMaze-v0 text_reader=memory"),
    (CNN | {"env": "BabyAI-GoToObjS4-v0"}, "text_reader=memory", "sentence_encoder=nowhere/"),
    (CNN | {"env": "BabyAI-GoToObjS4-v0"}, f"sentence_encoder={TRANSFORMER_XL}"),
    (CNN | T_MAZE, "door_order=episode", "recognition_stimuli=pictures", "model=SHELM"),
    (CNN | {"env": "KeyToDoor-v0"}, "door_order=environment", "length=100001", "length=null"),
    (CNN | {"env": "HousekeepText-v0"}, "house_rooms=1 house_things=16", "housekeep_scene=rs_int"),
    (CNN | {"env": "HousekeepText-v0"}, "house_misplaced=9"),
    (CNN | {"env": "Housekeep-v0"}, "housekeep_folder=nowhere", "housekeep_episode=-1"),
    (CNN | {"env": "CrafterText-v0"}, "crafter_captions=learned", "crafter_captions=pixels"),
    (CNN | {"env": "CrafterText-v0"}, "crafter_actions=17"),
    (CNN | {"env": "Crafter-v1"}, "crafter_actions=good", "terminate_on_death=false"),
    (CNN | {"env": "Crafter-v1"}, "use_text=false"),
    (CNN | {"env": "MiniGrid-Empty-5x5-v0"}, "env_args={}", "env_processes=true"),
    (CNN | {"env": "popgym-RepeatFirstEasy-v0"}, "env_args={}", "env_processes=true"),
)

HELM_BEST, HELM_LAST = f"{HELM_GOOD}/ckpt_best.pt", f"{HELM_UNFINISHED}/ckpt_last.pt"
EVAL = ("eval", "--ckpt-path", HELM_BEST, "--n-episodes=1")
RESUME = ("main", "--resume", HELM_UNFINISHED)
XL_CONFIG = f"{XL}/config.json"
WEIGHT = "agent heads.actor.0.weight"
WITH_XL, WITH_WORDS = (("main", *settings(**each)) for each in (HELM, SHELM))


def text(old):
    return "a\n\x1b[31m\0b"


def above(old):
    return "../../../elsewhere"


def minus_one(old):
    return -1


def in_a_list(old):
    return [old]


def vast(old):
    return 2**63


def without_a_row(old):
    return old[:-1]


def flat(old):
    return old.reshape(-1)


def not_finite(old):
    return old * math.nan


# A command, a file or folder of it, and how that is spoiled.
SPOILED = [
    *((EVAL, HELM_BEST, how) for how in (emptied, halved, flipped, endless)),
    *((EVAL, HELM_BEST, value("config model", how)) for how in (removed, text, above, in_a_list)),
    *((EVAL, HELM_BEST, value("config env", how)) for how in (removed, text, above, in_a_list)),
    *((EVAL, HELM_BEST, value("config mem_len", how)) for how in (minus_one, vast, text)),
    *((EVAL, HELM_BEST, value("env_steps", how)) for how in (removed, text, minus_one)),
    *((EVAL, HELM_BEST, value("agent", how)) for how in (removed, text, in_a_list)),
    *((EVAL, HELM_BEST, value(WEIGHT, how)) for how in (removed, text, flat, not_finite)),
    (EVAL, HELM_BEST, value("weights language_model", text)),
    (RESUME, HELM_LAST, value("learner optimizer 4 exp_avg", without_a_row)),
    (RESUME, HELM_LAST, value("own random torch", minus_one)),
    (RESUME, HELM_LAST, value("collector env running seed", minus_one)),
    (RESUME, HELM_LAST, value("collector episodes", text)),
    (RESUME, HELM_LAST, value("collector n_episodes", in_a_list)),
    (RESUME, HELM_LAST, value("run seconds", text)),
    *((("main", "--config", GOOD), GOOD, how) for how in (a_folder, endless)),
    (("plot", HELM_GOOD), f"{HELM_GOOD}/config.json", halved),
    *((WITH_XL, XL, how) for how in (removed, a_folder)),
    *((WITH_XL, XL_CONFIG, value("n_layer", how)) for how in (removed, text, vast)),
    (("main", *settings(**HELM_V2)), CLIP, halved),
    (WITH_WORDS, WORDS, flipped),
    *((WITH_WORDS, WORDS, value("embeddings", how)) for how in (without_a_row, flat, not_finite)),
    (WITH_WORDS, WORDS, value("ids", lambda old: -1 - old)),
]


def not_refused(capsys, cases):
    """Return which of the cases are not refused as they should be, and how."""
    found = {}
    for program, command in cases:
        try:
            refused(capsys, program, command)
        except BaseException as error:
            found[f"{program} {str(command[-3:])[:200]}"] = f"{type(error).__name__}: {error}"[:300]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("program", dict.fromkeys(row[0] for row in COMMAND_LINES))
def test_every_bad_word_is_refused(program, in_gallery, capsys):
    rows = [row[1:] for row in COMMAND_LINES if row[0] == program]
    cases = [(program, [*good, f"{option}{v}"]) for good, option, values in rows for v in values]
    assert not_refused(capsys, cases) == {}


@pytest.mark.slow
def test_settings_that_contradict_one_another_are_refused(in_gallery, capsys):
    cases = [
        ("main", settings(**(base | dict(word.split("=", 1) for word in change.split()))))
        for base, *changes in CONTRADICTIONS
        for change in changes
    ]
    assert not_refused(capsys, cases) == {}


@pytest.mark.slow
@pytest.mark.parametrize("row", SPOILED, ids=lambda row: f"{row[0][0]} {row[1]} {row[2].__name__}")
def test_every_spoiled_file_is_refused(row, gallery, tmp_path, monkeypatch):
    (program, *command), path, spoil = row
    monkeypatch.chdir(shutil.copytree(gallery, tmp_path / "place"))
    spoil(Path(path))
    status, lines = ended(program, command)
    assert status in (1, 2), lines
    assert not Path(TRACE).exists()


def test_an_episode_that_the_ring_cannot_hold_ends_the_run_in_one_line(in_empty_folder, capsys):
    assert main_program.main(settings(**FROM_REPLAY, replay_capacity=3)) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("replay_capacity: an episode of 5 steps takes 6 rows")


def test_mistakes_in_different_places_are_all_shown(in_empty_folder, capsys):
    command = settings(gamma=2, n_envs="many", learnin_rate=1)
    assert len(refused(capsys, "main", command, n_lines=3)) == 3
    lines = refused(capsys, "main", [*settings(env="x\ny", model="GTP"), "--run-id=.."], n_lines=3)
    assert [line.split(":")[0] for line in lines] == ["env", "model", "--run-id '..'"]


@property_test
@given(content=st.binary(max_size=200))
def test_any_bytes_as_settings_or_a_checkpoint_are_refused(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.pt"
    path.write_bytes(content)
    with pytest.raises(UserError):
        load_checkpoint(path)
    try:
        load_config(path)
    except UserError:
        return
    assert json.loads(content) == {}


@property_test
@given(name=st.text(max_size=200))
def test_any_run_id_is_one_plain_name_or_refused(name):
    try:
        check_run_id(load_config(), name)
    except UserError:
        return
    assert Path(name).name == name
    assert name.isascii()
    assert name.isprintable()
    assert name[0] not in ".-"


def test_a_setting_beyond_the_interpreters_depth_is_refused():
    assert main_program.main(["--var", "n_envs=" + "[" * 10**6]) == 2
