"""How many threads a run uses, and how they wait."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import main as main_program
from benchmarks.training import Options, trained_agent
from envs import make_vector_env
from models import build_agent
from models.observations import Percept
from runs.folder import recorded_threads
from tests.agents import BY_PPO, small_config, spaces
from tests.test_resume import command, folder_of
from tools.faults import outcome, same
from trainers import threads
from trainers.ranks import Ranks
from trainers.threads import Threads, clearly_fastest, numbers_up_to, seconds_by_number
from trainers.trial import Trial, Workload
from utils.threads import let_waiting_threads_sleep

ROOT = Path(__file__).parent.parent
PROGRAMS = ("main.py", "eval.py", "prepare_embeddings.py")
MODULES = ("analysis", "benchmarks", "benchmarks.training", "benchmarks.grid_clip")
ON_IMPORT = """
import os, runpy, sys
class Spy:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Spy())
"""


@pytest.fixture
def free(monkeypatch):
    """Let nobody have chosen a number, and PyTorch begin with four threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # so that it is put back
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(1)


class Work:
    """Takes what it is told to with each number of threads."""

    def __init__(self, **seconds):
        self.seconds = {int(name[1:]): value for name, value in seconds.items()}
        self.tried = []

    def __call__(self):
        self.tried.append(torch.get_num_threads())
        return self.seconds[self.tried[-1]]


def test_powers_of_two_and_the_largest_number_are_tried():
    assert [numbers_up_to(most) for most in (1, 2, 4, 6)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 6]]


def test_the_numbers_take_turns_and_the_first_round_does_not_count(monkeypatch):
    monkeypatch.setattr(threads, "MEASURED_SECONDS", 0)
    first = iter((100.0, 100.0, 3.0, 2.0))
    tried = []

    def work():
        tried.append(torch.get_num_threads())
        return next(first)

    assert seconds_by_number(work, [1, 2]) == {1: 3.0, 2: 2.0}
    assert tried == [1, 2, 1, 2]
    assert torch.get_num_threads() == 1


def test_the_present_number_stays_unless_another_is_clearly_faster():
    assert clearly_fastest({1: 1.0, 2: 0.9, 4: 0.95}, present=1) == 1
    assert clearly_fastest({1: 1.0, 2: 0.8, 4: 0.5}, present=1) == 4
    assert clearly_fastest({1: 0.9, 2: 1.0, 4: 2.0}, present=2) == 2


def test_a_run_begins_with_what_is_fastest_and_changes_when_that_does(
    free, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(threads, "MEASURED_SECONDS", 0)
    work = Work(n1=3.0, n2=1.0, n4=2.0)
    chosen = Threads(small_config(), tmp_path, work, Ranks())
    chosen.begin(0)
    assert torch.get_num_threads() == 2
    assert "threads: 2 of 4, a rollout and its update take 3 s with 1, 1 s with 2, 2 s with 4" in (
        capsys.readouterr().out
    )
    work.seconds = {1: 0.5, 2: 2.0, 4: 2.0}
    chosen.try_again(100)
    assert torch.get_num_threads() == 2  # it is not time yet
    monkeypatch.setattr(threads, "MINUTES_BETWEEN", 0)
    chosen._due = 0.001
    chosen.try_again(200)
    assert torch.get_num_threads() == 1
    record = json.loads((tmp_path / "run.json").read_text())["threads"]
    assert record == [{"env_steps": 0, "threads": 2}, {"env_steps": 200, "threads": 1}]


def test_a_run_that_goes_on_begins_with_the_number_it_had(free, tmp_path):
    (tmp_path / "run.json").write_text('{"threads": [{"env_steps": 0, "threads": 2}]}')
    work = Work()
    Threads(small_config(), tmp_path, work, Ranks()).begin(100)
    assert torch.get_num_threads() == 2
    assert work.tried == []


@pytest.mark.parametrize("text", ["{}", '{"threads": 3}', '{"threads": [{"threads": "x"}]}', "?"])
def test_a_record_that_says_no_number_is_none(text, tmp_path):
    (tmp_path / "run.json").write_text(text)
    assert recorded_threads(tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "ranks", "number"),
    [({}, Ranks(), "3"), ({"deterministic": True}, Ranks(), "3"), ({}, Ranks(1, 2), None)],
)
def test_a_number_that_is_given_stays(changes, ranks, number, free, tmp_path, monkeypatch):
    if number:
        monkeypatch.setenv("OMP_NUM_THREADS", number)
    torch.set_num_threads(3)
    work = Work()
    Threads(small_config(**changes), tmp_path, work, ranks).begin(0)
    assert torch.get_num_threads() == 3
    assert work.tried == []


def test_deterministic_runs_have_one_thread(free, tmp_path):
    Threads(small_config(deterministic=True), tmp_path, Work(), Ranks()).begin(0)
    assert torch.get_num_threads() == 1


def test_what_is_tried_leaves_a_run_as_it_is(in_empty_folder, monkeypatch):
    monkeypatch.setattr(threads, "MEASURED_SECONDS", 0)
    begin, n_trials = Threads.begin, []

    def begin_after_a_trial(self, env_steps):
        n_trials.append(self.work())
        begin(self, env_steps)

    for name in BY_PPO:
        assert main_program.main(command(name, "without", adv_norm="true")) == 0
        without = outcome(folder_of("without"))
        with monkeypatch.context() as patch:
            patch.setattr(Threads, "begin", begin_after_a_trial)
            patch.setattr(Threads, "try_again", begin_after_a_trial)
            assert main_program.main(command(name, "with", adv_norm="true")) == 0
        assert same(outcome(folder_of("with")), without)
        for run_id in ("with", "without"):
            folder_of(run_id).rename(f"{run_id}-{name}")
    assert len(n_trials) == len(BY_PPO) * 5
    assert min(n_trials) > 0


def test_what_is_tried_counts_every_step_and_sample(monkeypatch):
    config = small_config(model="CNN-PPO", env="RandomMaze-v0", n_rollout_steps=200, n_epochs=2)
    env = make_vector_env(config, 0)
    agent = build_agent(config, env.single_observation_space, env.single_action_space)
    percept = Percept.first(agent.read(env.reset(seed=0)[0]))
    trial = Trial(agent, Workload(n_steps=200, n_epochs=2, n_sequences=8), percept)
    batch = trial._act()[1]
    assert len(batch.actions) == 170 * 3  # of 200 * 3
    monkeypatch.setattr(trial, "_act", lambda: (0.5, None))
    monkeypatch.setattr(trial, "_learn", lambda batch: 51.0)
    assert trial() == pytest.approx(200 * 0.5 + 2 * 200 / 170 * 51)


def test_a_seed_gives_the_same_weights_with_any_number_of_threads(free):
    drawn = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        torch.manual_seed(0)
        drawn.append(build_agent(small_config(model="CNN-PPO"), *spaces((3, 56, 56))).state_dict())
        assert torch.get_num_threads() == n_threads
    assert same(*drawn)


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(given, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    let_waiting_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == (given or "PASSIVE")


@pytest.mark.parametrize("program", [*PROGRAMS, *MODULES])
def test_how_threads_wait_is_settled_before_pytorch_is_imported(program):
    run = f"runpy.run_path({program!r}, run_name='__main__')"
    if program in MODULES:
        run = f"runpy.run_module({program!r}, run_name='__main__', alter_sys=True)"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    finished = subprocess.run(
        [sys.executable, "-c", ON_IMPORT + run],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": "."},
        capture_output=True,
        text=True,
    )
    assert finished.stdout == "PASSIVE\n", finished.stderr


def test_a_benchmark_uses_the_number_of_threads_it_names(free, in_empty_folder):
    config = replace(small_config(model="CNN-PPO", env="RandomMaze-v0", n_steps=30))
    trained_agent("CNN-PPO", config, Options(30, 0, 2, "cpu", shares=False))
    assert torch.get_num_threads() == 2
