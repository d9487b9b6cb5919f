import numpy as np
import pytest
import torch

from models.agent import Step, TensorMemory
from tests.counting import CountingEnv
from trainers.evaluation import evaluate


class Silent:
    """Acts without looking."""

    device = torch.device("cpu")

    def initial_memory(self, n_envs):
        return TensorMemory(torch.zeros(n_envs, 0))

    def act(self, observations, memory, starts, deterministic=False):
        zeros = torch.zeros(len(observations))
        return Step(zeros.long(), zeros, observations[:, 0, 0, 0].float(), zeros[:, None])

    def explain(self, observations):
        return {"words": np.array([[str(n)] for n in observations[:, 0, 0, 0].tolist()])}


class Telling(Silent):
    """Counts the steps of every episode in its memory and tells what it held before each."""

    def initial_memory(self, n_envs):
        return TensorMemory(torch.zeros(n_envs, 1))

    def act(self, observations, memory, starts, deterministic=False):
        memory.state.masked_fill_(starts[:, None], 0)
        memory.state += 1
        step = super().act(observations, memory, starts, deterministic)
        return step._replace(all_log_probs=torch.full((len(observations), 4), 0.25).log())

    def inspect(self, observations, memory, starts):
        return {"held": memory.state.masked_fill(starts[:, None], 0).numpy().copy()}


def test_every_environment_plays_its_share_however_long_its_episodes_are():
    env = CountingEnv(lengths=[2, 5, 3])
    episodes = list(evaluate(Silent(), env, n_episodes=7))
    assert len(episodes) == 7
    lengths = [recording.episode.length for recording in episodes]
    assert sorted(lengths) == [2, 2, 2, 3, 3, 5, 5]


def test_returns_are_raw_sums_of_rewards():
    env = CountingEnv(lengths=[4])
    (recording,) = evaluate(Silent(), env, n_episodes=1)
    assert recording.episode.episode_return == np.sum([1, 2, 3, 4])


def test_a_recording_holds_its_own_episode_and_is_read_without_pickle(tmp_path):
    env = CountingEnv(lengths=[2, 3])
    for number, recording in enumerate(evaluate(Silent(), env, n_episodes=4)):
        path = tmp_path / f"{number}.npz"
        recording.save(path)
        with np.load(path, allow_pickle=False) as arrays:
            length = recording.episode.length
            counts = list(range(length))
            assert arrays["observations"].shape == (length, 3, 9, 9)
            assert arrays["observations"][:, 0, 0, 0].tolist() == counts
            assert arrays["values"].tolist() == counts
            assert arrays["rewards"].tolist() == [count + 1 for count in counts]
            assert arrays["words"][:, 0].tolist() == [str(count) for count in counts]
            assert arrays["actions"].shape == (length,)


def test_details_are_what_the_agent_held_before_it_acted():
    env = CountingEnv(lengths=[2, 3])
    for recording in evaluate(Telling(), env, n_episodes=4, in_detail=True):
        length = recording.episode.length
        assert recording.details["held"][:, 0].tolist() == list(range(length))
        assert recording.details["probabilities"].shape == (length, 4)
        assert recording.details["probabilities"] == pytest.approx(0.25)


def test_nothing_is_looked_into_unless_asked_for():
    (recording,) = evaluate(Telling(), CountingEnv(lengths=[2]), n_episodes=1)
    assert recording.details == {}


@pytest.mark.parametrize("in_detail", [False, True])
def test_details_are_not_written_with_the_steps(in_detail, tmp_path):
    env = CountingEnv(lengths=[2])
    (recording,) = evaluate(Telling(), env, n_episodes=1, in_detail=in_detail)
    recording.save(tmp_path / "episode.npz")
    with np.load(tmp_path / "episode.npz") as arrays:
        assert set(arrays) == {"observations", "actions", "values", "words", "rewards"}
