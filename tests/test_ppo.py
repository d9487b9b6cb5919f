import math
import re

import pytest
import torch

from analysis.run_data import read_columns
from models.baselines import CnnAgent, LstmAgent
from models.encoders import SmallImpalaCNN
from models.heads import ActorCritic
from models.helm import LanguageMemory, LanguageMemoryAgent
from models.observation_to_language import ImageToLanguage
from tests import golden_data
from tests.agents import golden_rollout, small_config, spaces
from tests.runs import CNN, GPT, LSTM, train_row
from tests.runs import PPO as PPO_RUN
from trainers import ppo
from trainers.ppo import PPO, clipped_policy_loss

SETTINGS = (
    *("gamma", "gae_lambda", "n_batches", "n_epochs", "clip_range", "clip_range_vf", "ent_coef"),
    *("vf_coef", "learning_rate", "max_grad_norm", "adv_norm", "sequences_per_batch"),
)


class LanguageModelStub(torch.nn.Module):
    """A language model that is never asked, because the rollout holds its hidden states."""

    name, mem_len, n_positions = "stub", 1, None

    def __init__(self, width):
        super().__init__()
        self.width = width


def golden_config(arrays):
    values = {name: arrays[f"config.{name}"].item() for name in SETTINGS}
    if math.isnan(values["clip_range_vf"]):
        values["clip_range_vf"] = None
    n_steps, n_envs = arrays["actions"].shape
    return small_config(n_envs=n_envs, n_rollout_steps=n_steps, **values)


class GoldenHelm(LanguageMemoryAgent):
    """HELM with a memory that is never asked: its outputs are part of the golden rollout."""

    @staticmethod
    def build_frozen_memory(config, observation_space):
        return LanguageMemory(ImageToLanguage(), LanguageModelStub(config.memory_width), 0)


def golden_agent(name, config, arrays):
    """Return an agent with the widths of the golden parameters and their values."""
    before = golden_data.parameters(arrays, "before.")
    seen, n_actions = arrays["observations"].shape[2:], len(before["heads.actor.3.bias"])
    encoder = "query_encoder" if name == "helm" else "encoder"
    width = len(before[f"{encoder}.linear.bias"])
    channels = tuple(len(before[f"{encoder}.convolutions.{layer}.bias"]) for layer in (0, 2))
    config = config.replace(observation_cache_mb=0, memory_width=width)
    kind = {"helm": GoldenHelm, "lstm": LstmAgent}.get(name, CnnAgent)
    agent = kind(config, *spaces(seen, n_actions))
    setattr(agent, encoder, SmallImpalaCNN(seen, width, channels))
    agent.heads = ActorCritic(before["heads.actor.0.weight"].shape[1], n_actions)
    # The original's LSTM stands beside its encoder and heads.
    ours = {re.sub(r"^lstm\.", "memory.lstm.", name): value for name, value in before.items()}
    agent.load_state_dict(ours)
    return agent


@pytest.mark.parametrize("name", ["cnn", "cnn_clip_vf", "helm", "lstm"])
def test_one_update_agrees_with_the_original(name):
    arrays = golden_data.load(f"ppo_update_{name}")
    config = golden_config(arrays)
    agent = golden_agent(name, config, arrays)
    learner = PPO(config, agent)
    context = arrays.get("hidden", torch.zeros(*arrays["actions"].shape, 0))

    learner.rollout = golden_rollout(arrays, context)
    metrics = learner.update(progress=0.0, permutations=arrays["permutations"])

    after = golden_data.parameters(arrays, "after.")
    for key, value in agent.state_dict().items():
        key = key.removeprefix("memory.")
        torch.testing.assert_close(value, after[key], atol=2e-5, rtol=0, msg=lambda m, k=key: k + m)
    for key, value in golden_data.under(arrays, "log.").items():
        ours = "train/n_epochs" if key == "train/n_updates" else key
        assert metrics[ours] == pytest.approx(value.item(), rel=1e-4, abs=1e-5), key


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "n_rollout_steps", "is_told"),
    [(LSTM, 4, True), (LSTM, 20, False), (GPT, 4, False), (CNN, 4, False)],
)
def test_gradients_that_end_within_the_episodes_are_told_once(
    memory, n_rollout_steps, is_told, in_empty_folder, caplog
):
    episodes_of_17 = {"env": "tests.any_envs:Long-v0", "n_steps": 400}
    train_row("run", PPO_RUN | memory | episodes_of_17 | {"n_rollout_steps": n_rollout_steps})
    told = [line for line in caplog.messages if line.startswith("n_rollout_steps: ")]
    assert len(told) == is_told
    assert all(f"17 steps on average, rollouts {n_rollout_steps}" in line for line in told)


@pytest.mark.parametrize(("target", "n_epochs"), [("null", 4), (0.6, 4), (0.4, 1)])
def test_passes_end_where_the_policy_is_far_from_the_one_that_acted(
    target, n_epochs, in_empty_folder, monkeypatch
):
    def far(*given):
        return clipped_policy_loss(*given)._replace(approx_kl=torch.tensor(0.5))

    monkeypatch.setattr(ppo, "clipped_policy_loss", far)
    folder = train_row("run", PPO_RUN | LSTM | {"n_epochs": 4, "target_kl": target})
    epochs = read_columns(folder)["train/n_epochs"].tolist()
    assert epochs == [n_epochs * number for number in range(1, len(epochs) + 1)]
    assert len(epochs) > 1
