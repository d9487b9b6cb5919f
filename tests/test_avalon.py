"""The package's real Python side against a stand-in for its engine (tests/fake_godot.py)."""

import ast
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import eval as eval_program
import main as main_program
from envs import avalon_package, make_vector_env
from envs.avalon import ACTION_NAMES, BASIC, COMPOUND, Avalon, AvalonEnv
from models.language.files import find_model
from models.word_embeddings import PROMPTS, PromptEmbeddings, prepare
from tests import fake_godot
from tests.agents import small_config
from tests.bad_inputs.harness import in_one_line, refused
from tests.golden_data import GOLDEN
from tests.runs import folder_of, outcome, resume, same, signal_at, words_of
from tests.tiny_clip import tiny_encoder
from utils.errors import EnvFault
from utils.given_settings import CONFIGS, load_config

EAT = {"env": "Avalon-eat-v0", "avalon_difficulty": 0.0}  # the world that is made soonest
JUMP, GRASP = ACTION_NAMES.index("jump"), ACTION_NAMES.index("right grasp")
TRAINING_LIMIT, EVALUATION_LIMIT = 260, 3000  # steps of the easiest world to eat in
LEFT = 1  # the place of the steps that are left, among the numbers
# The package's name of each published setting, and ours.
SETTINGS = {"num_steps": "n_rollout_steps", "num_workers": "n_envs", "ppo_epochs": "n_epochs"}
SETTINGS |= {"discount": "gamma", "lam": "gae_lambda", "value_loss_coef": "vf_coef"}
SETTINGS |= {"entropy_coef": "ent_coef", "clip_range": "clip_range", "lr": "learning_rate"}
SETTINGS |= {"clip_grad_norm": "max_grad_norm", "total_env_steps": "n_steps"}
RUN = EAT | {"device": "cpu", "model": "SHELM", "n_envs": 1, "n_steps": 48}
RUN |= {"n_rollout_steps": 8, "n_batches": 2, "n_epochs": 1, "checkpoint_minutes": 60}


def config(**changes):
    return small_config(**({"model": "CNN", "n_envs": 1} | EAT | changes))


def action(*pressed):
    actions = np.zeros(len(ACTION_NAMES), np.float32)
    actions[list(pressed)] = 1
    return actions


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """Import the package, where it is installed, with a folder of its own for its files."""
    if importlib.util.find_spec("avalon") is None:
        pytest.skip("avalon-rl is not installed")
    os.environ.setdefault("SCIENCE_FILESYSTEM_ROOT", str(tmp_path_factory.mktemp("science")))
    return avalon_package.world_makers()


@pytest.fixture
def engine(package, monkeypatch, tmp_path):
    return fake_godot.install(monkeypatch, tmp_path)


@pytest.fixture
def env(engine):
    made = AvalonEnv(config(), [])
    yield made
    made.close()


@pytest.mark.parametrize(
    ("settings", "version", "words"),
    [
        ({"env": "Avalon-fly-v0"}, "1.0.2", ("env: ", "'Avalon-fly-v0'", "Avalon-fight-v0")),
        (EAT, None, ("env: 'Avalon-eat-v0' needs avalon-rl 1.0.2", "docs/how-to/avalon.md")),
        (EAT, "1.0.1", ("1.0.1 is installed", "pip install --no-deps avalon-rl==1.0.2")),
    ],
)
def test_a_wrong_name_and_a_package_that_is_missing_or_another_are_refused(
    settings, version, words, monkeypatch, capsys, in_empty_folder
):
    versions = metadata.version

    def known(name):
        if name != avalon_package.NAME:
            return versions(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", known)
    refused(capsys, "main", words_of({"model": "CNN"} | settings), *words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine_path", "settings", "words"),
    [
        ("nowhere", {}, ("nowhere. Run: python -m envs.avalon_package",)),
        (None, {"avalon_worlds": "elsewhere"}, ("avalon_worlds: 'elsewhere'", "evaluation")),
        (None, {"avalon_worlds": "evaluation", "avalon_difficulty": 2}, ("avalon_difficulty",)),
    ],
)
def test_a_missing_engine_and_missing_worlds_are_refused(
    engine_path, settings, words, package, monkeypatch, capsys, in_empty_folder, tmp_path
):
    program = fake_godot.install(monkeypatch, tmp_path)
    if engine_path is not None:
        module = avalon_package.package("datagen.godot_env.interactive_godot_process")
        monkeypatch.setattr(module, "GODOT_BINARY_PATH", str(program.with_name(engine_path)))
    refused(capsys, "main", words_of({"model": "CNN"} | EAT | settings), *words)


@pytest.mark.slow
def test_an_engine_that_shows_other_things_or_has_died_is_told_in_one_line(
    package, monkeypatch, tmp_path
):
    fake_godot.install(monkeypatch, tmp_path, without="hit_points")
    with in_one_line(r"hit_points.*Run: python -m envs.avalon_package --overwrite"):
        make_vector_env(config(), 0).reset(seed=0)
    fake_godot.install(monkeypatch, tmp_path)
    vector = make_vector_env(config(), 0)
    vector.reset(seed=0)
    vector.step(action()[None])
    (single,) = vector.env.env.envs
    os.killpg(single.unwrapped._engine.process.process.pid, signal.SIGKILL)
    with in_one_line(
        r"Avalon-eat-v0': environment 0: .*engine ended.*step 2 after reset"
    ) as caught:
        vector.step(action()[None])
    assert isinstance(caught.value, EnvFault)
    vector.close()


@pytest.mark.slow
def test_an_upright_image_the_body_and_what_is_left_are_shown(env):
    shown, info = env.reset(seed=3)
    assert info == {"task": "eat", "difficulty": 0.0}
    assert list(shown) == list(env.observation_space) == ["image", "numbers"]
    assert env.observation_space.contains(shown)
    assert shown["numbers"][LEFT] == pytest.approx((TRAINING_LIMIT - 1) * 1e-4)
    push = action(0, 1, 2, GRASP)  # three axes at once are at most one long
    shown, *_ = env.step(push)
    assert env.observation_space.contains(shown)
    assert shown["image"][0, 0, 0] == 1  # the engine's lowest row is the last one
    assert shown["image"][0, -1, 0] == 0
    assert shown["numbers"][LEFT] == pytest.approx((TRAINING_LIMIT - 2) * 1e-4)
    np.testing.assert_allclose(shown["numbers"][13:16], 0.1 / np.sqrt(3), rtol=1e-6)
    assert shown["numbers"].max() == 1  # the thing in the right hand is a number of the engine's


@pytest.mark.slow
def test_depth_and_the_limits_of_evaluation_are_had_by_settings(engine):
    env = AvalonEnv(config(avalon_depth=True, avalon_worlds="evaluation"), [])
    shown, _ = env.reset(seed=3)
    assert env.observation_space.contains(shown)
    assert (shown["depth"] == fake_godot.DEPTH).all()
    assert shown["numbers"][LEFT] == pytest.approx((EVALUATION_LIMIT - 1) * 1e-4)
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pressed", "n_steps", "end", "success", "best"),
    [
        ((GRASP,), fake_godot.EATS - 1 + fake_godot.FRAMES_AFTER_FOOD, "terminated", True, 0.5),
        ((JUMP,), fake_godot.FALLS, "terminated", False, 0),
        ((), TRAINING_LIMIT - 1, "truncated", False, 0),
    ],
)
def test_an_episode_ends_fed_dead_or_at_its_limit(env, pressed, n_steps, end, success, best):
    env.reset(seed=0)
    steps = [env.step(action(*pressed)) for _ in range(n_steps)]
    assert not any(step[2] or step[3] for step in steps[:-1])
    *_, terminated, truncated, info = steps[-1]
    assert (terminated, truncated) == (end == "terminated", end == "truncated")
    assert (info["success"], info["task"], info["difficulty"]) == (success, "eat", 0)
    assert max(step[1] for step in steps) == pytest.approx(best, abs=1e-3)
    assert env.step(action())[0] is not None  # the engine stays, until the next reset


@pytest.mark.slow
def test_a_seed_decides_the_world_and_its_folder_goes_with_it(env):
    corners, folders = [], []
    for seed in (3, 4, 3):
        shown, _ = env.reset(seed=seed)
        corners.append(shown["image"][:, 0, 0].tolist())
        folders.append(env._world.folder)
    assert corners[0] == corners[2] != corners[1]
    assert [folder.exists() for folder in folders] == [False, False, True]
    env.close()
    assert not folders[-1].exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "tasks"), [("all", {*BASIC, *COMPOUND}), ("basic", {*BASIC}), ("find", {"find"})]
)
def test_tasks_and_difficulties_are_drawn_for_each_episode(package, monkeypatch, task, tasks):
    monkeypatch.setattr(package, "generate_world", lambda wanted: wanted)
    env = AvalonEnv(config(env=f"Avalon-{task}-v0", avalon_difficulty=0.4), [])
    drawn = []
    for _ in range(200):
        drawn.append(env._drawn_world())
        drawn[-1].folder.rmdir()
    assert {each.parameters.task.value.lower() for each in drawn} == tasks
    difficulties = [each.parameters.difficulty for each in drawn]
    assert 0 <= min(difficulties) < 0.05 < 0.35 < max(difficulties) <= 0.4
    assert {kind.value.lower() for kind in package.AvalonTask} == {*BASIC, *COMPOUND}


@pytest.mark.slow
def test_published_worlds_of_the_task_are_played_from_a_folder(env, tmp_path):
    env.reset(seed=0)
    worlds = tmp_path / "worlds"
    for name in ("eat__0007__0_35", "jump__0008__0_5"):
        shutil.copytree(env._world.folder / "world", worlds / name)
    single = make_vector_env(config(avalon_worlds=str(worlds)), 0)
    for seed in range(2):
        _, info = single.reset(seed=seed)
        assert (info["task"][0], info["difficulty"][0]) == ("eat", 0.35)
    single.close()
    assert sorted(path.name for path in worlds.iterdir()) == ["eat__0007__0_35", "jump__0008__0_5"]


@pytest.mark.slow
def test_an_episode_is_played_again_from_its_seed_and_actions(engine):
    first, again = (Avalon().make(config(), 1) for _ in range(2))
    first.reset(seed=1)
    actions = [action(0), action(GRASP), action(1)]
    for each in actions:
        first.step(each[None])
    running = first.running()
    assert again.replay(running, [np.stack(actions)])
    assert not again.replay(running, [np.stack(actions[::-1])])
    for env in (first, again):
        env.close()


@pytest.mark.slow
def test_shelm_is_trained_resumed_to_the_bit_and_played(engine, in_empty_folder, monkeypatch):
    path = prepare(tiny_encoder(), find_model(GOLDEN / "transfo_xl_k1"), "avalon", Path("data"))
    assert tuple(PromptEmbeddings.read(path).prompts) == PROMPTS["avalon"]
    words = words_of(RUN | {"embeddings": str(path)})
    assert main_program.main([*words, "--run-id=whole"]) == 0
    with monkeypatch.context() as for_a_while:
        signal_at(for_a_while, signal.SIGINT, at=19)
        assert main_program.main([*words, "--run-id=cut"]) == 130
    assert resume("cut") == 0
    whole = folder_of("whole")
    assert same(outcome(folder_of("cut")), outcome(whole))
    assert float(outcome(whole)["metrics"][-1]["rollout/success_mean"]) >= 0
    played = ["--ckpt-path", str(whole), "--n-episodes=1", "--var=avalon_worlds=evaluation"]
    assert eval_program.main([*played, "--report"]) == 0
    (recording,) = Path("episodes").rglob("*.npz")
    with np.load(recording, allow_pickle=False) as arrays:
        assert arrays["words"].shape[1] == 2


@pytest.mark.slow
def test_the_settings_are_those_of_the_packages_own_training(package):
    source = Path(avalon_package.package("agent.ppo").__file__).parents[1] / "train_ppo_avalon.py"
    (told,) = (
        node
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.ClassDef) and node.name == "AvalonPPOParams"
    )
    constants = {
        each.target.id: each.value.value
        for each in told.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.value, ast.Constant)
    }
    for path in CONFIGS.glob("Avalon/*/config.json"):
        settings = load_config(path).as_dict()
        for theirs, ours in SETTINGS.items():
            assert settings[ours] == constants[theirs], (path, theirs)
        assert settings["n_batches"] == 1


def test_points_of_a_world_are_those_of_the_library_it_was_made_with():
    firsts = [(0, 0), (0.5, -0.5), (-0.5, 0.5), (-0.25, -0.25), (0.75, 0.75), (0.25, -0.75)]
    points = avalon_package._sobol_points(5)
    assert points.tolist() == [*map(list, firsts), [-0.75, 0.25], [-0.625, -0.375]]
    assert [len(avalon_package._sobol_points(n)) for n in (1, 8, 9)] == [2, 16, 16]


@pytest.mark.slow
def test_the_engine_is_fetched_by_the_packages_installer(engine, monkeypatch):
    def retrieve(address, path):
        assert address.startswith("https://github.com/Avalon-Benchmark/godot/releases/")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("program", f"of {Path(address).name}")

    monkeypatch.setattr(urllib.request, "urlretrieve", retrieve)
    monkeypatch.setattr(sys, "argv", ["avalon_package.py", "--overwrite"])
    module = avalon_package.package("datagen.godot_env.interactive_godot_process")
    monkeypatch.setattr(module, "GODOT_EDITOR_PATH", f"{engine}_editor")
    avalon_package.fetch()
    assert engine.read_text() == "of linux-egl-editor.zip"
    assert os.access(engine, os.X_OK)


@pytest.mark.slow
def test_two_environments_have_an_engine_each(engine, in_empty_folder):
    words = words_of(RUN | {"model": "CNN", "n_envs": 2, "n_steps": 32})
    program = Path(main_program.__file__)
    done = subprocess.run(
        [sys.executable, str(program), *words, "--run-id=two"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "global random stream" not in done.stderr
    assert (folder_of("two") / "metrics.csv").is_file()
