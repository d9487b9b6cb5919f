"""Training: the loop, the learners by name, and what a run keeps."""

from settings import Registry

LEARNERS = Registry(
    "algorithm",
    {
        "PPO": "trainers.ppo:PPO",
        "DQN": "trainers.dqn:DQN",
        "SAC": "trainers.sac:SAC",
        "NStepDQN": "trainers.n_step_dqn:NStepDQN",
    },
    "algorithm",
)
