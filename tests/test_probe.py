"""The probe: accuracy of its read-out, cues of the tasks, verdicts."""

import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analysis.__main__ import main
from analysis.probe import LOOKED_BACK, Line, Reading, points, read_out, recalled
from envs import make_vector_env
from envs.any_gymnasium import vector_of
from envs.vector import EpisodeStatistics
from models import build_agent
from tests.agents import percept, random_images, small_config, spaces
from tests.any_envs import Sampled
from tests.test_analysis import refusal, rows
from tests.test_program import TASK, train
from tests.tiny_clip import tiny_settings
from utils.environments import NOT_SHOWN, Wrapped
from utils.errors import UserError
from utils.given_settings import load_config

N_STEPS, WIDTH = 5, 8
MAZE = {"env": "TMazePassive-v0", "length": 2}


def episodes(state_of=lambda answer, t: 0.0, spread=1.0):
    """Return states, noise and state_of(answer, t), and cues of episodes: first an answer."""
    rng = np.random.default_rng(0)
    answers = rng.integers(2, size=80)
    cues = np.full((80, N_STEPS), NOT_SHOWN)
    cues[:, 0] = answers
    means = np.array([[state_of(answer, t) for t in range(N_STEPS)] for answer in answers])
    states = spread * rng.standard_normal((80, N_STEPS, WIDTH)) + means[..., None]
    return list(states.astype(np.float32)), list(cues)


@pytest.mark.slow
def test_what_stands_in_the_state_is_read_and_noise_is_at_chance():
    told = episodes(lambda answer, t: 8 * (2 * answer - 1) * (t < 3))
    readings = read_out(*told, seed=0)
    assert [each.k for each in readings] == [0, 1, 2, 3, 4]
    assert all(each.accuracy == 1 and each.signal > 0.5 for each in readings[:3])
    for each in readings[3:]:
        assert each.low < each.chance < each.high + 0.1
        assert abs(each.signal) < 0.01
    assert all(0.3 < each.shuffled < 0.7 for each in readings)
    assert all(each.n_episodes == 80 for each in readings)
    assert read_out(*told, seed=0) == readings
    assert read_out(*told, seed=4) != readings


@pytest.mark.slow
def test_a_difference_that_drowns_in_a_hundredth_of_the_spread_is_not_read():
    """States differ by step, as they do in an episode, and by a little where the answer does."""
    for size, is_read in ((1e-4, False), (0.2, True)):
        told = episodes(lambda answer, t, size=size: t + size * answer, spread=0)
        for each in read_out(*told, seed=0):
            assert each.accuracy == 1 if is_read else each.accuracy < 0.75


@pytest.mark.slow
def test_the_signal_is_the_variance_that_the_answer_makes():
    """States are the answer ±1 at every step and nothing else: all of their variance."""
    told = episodes(lambda answer, t: 2.0 * answer - 1, spread=0)
    assert all(each.signal == pytest.approx(1, abs=2e-2) for each in read_out(*told, seed=0))


def test_steps_count_from_the_last_sight_and_in_a_stream_from_every_one():
    cues = np.array([NOT_SHOWN, 2, 2, NOT_SHOWN, NOT_SHOWN, 1])
    read = {k: [part.tolist() for part in recalled(cues, k, is_stream=False)] for k in range(5)}
    assert read[0] == [[1, 2, 5], [2, 2, 1]]
    assert read[1] == [[3], [2]]
    assert read[2] == [[4], [2]]
    assert read[3] == read[4] == [[], []]
    stream = recalled(np.array([3, 1, 2]), 1, is_stream=True)
    assert [part.tolist() for part in stream] == [[1, 2], [3, 1]]


@pytest.mark.slow
def test_a_stream_is_read_k_steps_later_whatever_came_after():
    """The state is the card before the last: k = 1 is read, and nothing else."""
    cards = np.random.default_rng(0).integers(3, size=(60, 12))
    states = np.eye(3)[np.roll(cards, 1, axis=1)]
    by_k = {each.k: each for each in read_out(list(states), list(cards), seed=0)}
    assert by_k[1].accuracy > 0.95
    assert max(by_k[0].accuracy, by_k[2].accuracy) < 0.5


VERDICTS = {  # by accuracy, score and chance
    (1.0, 1.0, 0.5): "in memory, used",
    (0.9, 0.6, 0.5): "in memory, not used",
    (0.6, 0.5, 0.5): "not in memory",
    (0.6, 1.0, 0.5): "not read, and yet used",
    (0.9, 3.0, None): "in memory",
    (0.9, None, 0.5): "in memory",
}


@pytest.mark.parametrize("found", VERDICTS)
def test_memory_and_use_are_told_apart_where_the_decision_is_due(found):
    accuracy, score, chance = found
    read = ((0, 1.0), (10, accuracy), (20, 0.5))
    readings = [Reading(k, 400, a, a - 0.05, a + 0.05, 0.5, 0.5, 0.1) for k, a in read]
    line = Line("task", "LSTM", "run", score, chance, horizon=11, readings=readings)
    assert line.verdict == VERDICTS[found]
    assert line.reach == (10 if accuracy > 0.75 else 0)


def worlds(task, n_envs, drawn=True):
    return make_vector_env(load_config(None, [f"env={task}", f"n_envs={n_envs}"]), 0, drawn)


@pytest.mark.parametrize("task", [*LOOKED_BACK, "popgym-RepeatFirstEasy-v0"])
def test_cards_are_told_where_they_are_to_be_repeated(task):
    env = worlds(task, n_envs=1)
    shown = [env.reset(seed=0)[0]["0"]]  # the card; behind it the last action and a flag
    assert env.cues().tolist() == list(shown[0])
    n_back, rewards = LOOKED_BACK.get(task, 0), []
    for step in range(n_back + 15):
        wanted = shown[max(step - n_back, 0)] if n_back else shown[0]
        observations, reward, *_ = env.step(wanted)
        shown.append(observations["0"])
        assert env.cues().tolist() == (list(shown[-1]) if n_back else [NOT_SHOWN])
        rewards.append(reward[0])
    assert set(rewards[:n_back]) <= {0}
    assert min(rewards[n_back:]) > 0, "the suit of so many cards ago is always right"
    env.close()


class Told(Sampled):
    answer = 1

    def cue(self):
        return self.answer


class OneTold(Wrapped):
    def cues(self):
        return [1]


def test_an_environment_of_ones_own_tells_by_a_method_or_has_no_cues(monkeypatch):
    for answer, number in ((1, 1), (None, NOT_SHOWN), (np.int64(4), 4)):
        monkeypatch.setattr(Told, "answer", answer)
        assert EpisodeStatistics(vector_of(Told, 2, 0), "").cues().tolist() == [number] * 2
    for answer in ("red", 1.5, -2):
        monkeypatch.setattr(Told, "answer", answer)
        with pytest.raises(UserError, match="Return a whole number from 0 on, or None"):
            EpisodeStatistics(vector_of(Told, 1, 0), "").cues()
    without = vector_of(lambda: gymnasium.make("CartPole-v1"), 1, 0)
    assert EpisodeStatistics(without, "").cues() is None
    with pytest.raises(UserError, match="1 numbers"):
        EpisodeStatistics(OneTold(vector_of(Told, 2, 0)), "").cues()


@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "SAC"])
@pytest.mark.parametrize("model", ["CNN", "LSTM", "GPT", "HELM"])
def test_an_agent_says_what_its_memory_gives_to_its_heads(model, algorithm):
    changes = {"model": model, "algorithm": algorithm, "mem_len": 4, **tiny_settings(model)}
    agent = build_agent(small_config(**changes), *spaces()).eval()
    memory, is_first = agent.initial_memory(2), torch.ones(2, dtype=torch.bool)
    first = agent.act(percept(random_images(1).expand(2, -1, -1, -1), is_first), memory)
    torch.testing.assert_close(first.remembered[0], first.remembered[1])
    different = agent.act(percept(random_images(2), ~is_first), memory)
    assert (different.remembered[0] != different.remembered[1]).any()
    again = agent.act(percept(torch.zeros(2, 3, 9, 9, dtype=torch.uint8), ~is_first), memory)
    is_remembered = bool((again.remembered[0] != again.remembered[1]).any())
    assert is_remembered == (model != "CNN")
    if model == "HELM":
        assert torch.equal(again.remembered, again.stored_state)


@pytest.mark.slow
def test_runs_are_probed_alike_in_any_company_and_beside_their_untrained_twins(in_empty_folder):
    places = [str(train(model, model.lower(), **MAZE)) for model in ("LSTM", "CNN")]
    assert main(["probe", *places, "--n-episodes=32"]) == 0
    assert (in_empty_folder / "analysis_output/probe.png").read_bytes().startswith(b"\x89PNG")
    told = rows("probe_summary.csv")
    twins = ["LSTM", "LSTM, untrained", "CNN", "CNN, untrained"]
    assert [row["agent"] for row in told] == twins
    assert [bool(row["score"]) for row in told] == [True, False] * 2, "a twin does not play"
    assert {row["task"] for row in told} == {"TMazePassive-v0 2, PPO"}
    assert told[2]["verdict"] == "not in memory"
    of_lstm = [row | {"run": ""} for row in rows("probe.csv") if row["agent"].startswith("LSTM")]
    assert [row["k"] for row in of_lstm] == ["0", "1", "2"] * 2
    assert float(of_lstm[0]["accuracy"]) == 1

    assert main(["probe", f"{places[0]}/ckpt_best.pt", "--n-episodes=32"]) == 0
    assert [row | {"run": ""} for row in rows("probe.csv")] == of_lstm
    assert main(["probe", places[0], "--n-episodes=32", "--random-share=1"]) == 0
    signals = [row["signal"] for row in rows("probe.csv")]
    assert signals != [row["signal"] for row in of_lstm], "other episodes"
    assert signals[:3] != signals[3:], "another memory"


def test_a_mistake_gets_one_line_before_the_first_agent_plays(in_empty_folder, capsys, monkeypatch):
    monkeypatch.setattr("analysis.probe.evaluate", lambda *_, **__: pytest.fail("an agent plays"))
    embeddings = shutil.copy(tiny_settings("SHELM")["embeddings"], "own.npz")
    good, silent = str(train("CNN", "good", **MAZE)), str(train("CNN", "silent"))
    lost = str(train("SHELM", "lost", embeddings=embeddings))
    Path(embeddings).unlink()
    Path("episode.npz").write_bytes(b"")
    for command, line in {
        ("nowhere",): "nowhere: neither a run folder",
        ("experiments", "--random-share=2"): "argument --random-share",
        (good, silent): f"{TASK}: it does not tell its cues",
        (good, lost): "own.npz is missing",
        ("episode.npz",): "episode.npz: saved episodes hold no memory",
    }.items():
        assert line in refusal(capsys, ["probe", *command])


@pytest.mark.slow
@given(st.integers(12, 600))
def test_no_k_is_left_out_of_the_first_ten_however_long_an_episode(length):
    ks = points([np.zeros(length, dtype=np.int64)] * 8, is_stream=True)
    assert ks[:11] == list(range(11))
    assert (ks[-1], sorted(set(ks))) == (length - 1, ks)
    assert len(ks) < 52
