"""Whole runs on a pretended GPU: nothing is left on the wrong device."""

import pytest

import main
from tests.pretended_gpu import pretended_gpu
from trainers.ranks import Ranks
from utils.given_settings import load_config

PPO = "n_envs=2 n_rollout_steps=4 n_batches=1 n_epochs=1 n_steps=16"
REPLAY = (
    "env=TMazePassive-v0 length=3 n_envs=2 n_steps=16 batch_size=2 warmup_episodes=2 "
    "head_width=8 observation_embedding=4 action_embedding=4 memory_width=4"
)
FRAMES = (
    "algorithm=EllmDQN model=ELLM env=HousekeepText-v0 hidden_dim=8 n_envs=2 batch_size=4 "
    "learning_starts=72 n_steps=80 log_steps=40 target_update_steps=40 curiosity_width=8"
)
RUNS = {
    "PPO with an LSTM": f"model=LSTM {PPO} curiosity=RND curiosity_width=8",
    "PPO with a GPT": f"model=GPT mem_len=4 memory_width=8 {PPO} env=CartPole-v1",
    "HELM": f"model=HELM mem_len=4 {PPO}",
    "CNN": f"model=CNN {PPO}",
    "DQN": f"algorithm=DQN model=GPT mem_len=4 {REPLAY}",
    "SAC": f"algorithm=SAC model=LSTM {REPLAY} learn_temperature=true curiosity=RND",
    "ELLM": f"{FRAMES} curiosity=APT apt_neighbours=2",
}


@pytest.fixture
def gpu(monkeypatch, in_empty_folder):
    monkeypatch.setattr(main, "resolve_device", lambda name: "cuda")
    with pretended_gpu():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_a_run_mixes_no_devices(settings, gpu):
    config = load_config(None, [*settings.split(), "showcase_minutes=null"])
    folder = main.start_run(config, Ranks(), "x")
    assert (folder / "ckpt_last.pt").is_file()
