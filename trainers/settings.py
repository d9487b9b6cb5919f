"""The settings of learners, their replays, checkpoints, evaluations and logs."""

# Apart from the code that reads them: a program shows its help and refuses a wrong setting without
# waiting for PyTorch.

from dataclasses import dataclass

from models.settings import OffPolicyNetworkSettings
from utils.settings import Config, setting

EPISODE, STEP = "episode", "step"
MOST_SAMPLES = 2**24
DECAYS = ("none", "linear", "linear_burn_in", "exp")
WHOLE = -1
GUIDE_SHARE = 0.5  # as published
REWARD_CLIP = 1.0  # as published
MOST_KEPT = 100  # checkpoints


@dataclass(frozen=True)
class KeptSettings(Config):
    title = "checkpoints"

    keep_checkpoints: int = setting(
        "last checkpoints that are kept while the run goes on, each with its replay",
        low=2,
        high=MOST_KEPT,
        has_effect=False,
        default=2,
    )


@dataclass(frozen=True)
class CheckpointSettings(KeptSettings):
    title = "checkpoints"

    save_ckpt: bool = setting(
        "write ckpt_best.pt and ckpt_last.pt into the run folder", has_effect=False, default=True
    )
    checkpoint_minutes: float = setting(
        "minutes between two ckpt_last.pt", low=0, high=100_000, has_effect=False, default=1.0
    )


@dataclass(frozen=True)
class FinetuneSettings(Config):
    title = "beginning with an earlier agent"

    finetune: str = setting(
        "parameters that learn where the agent begins with another run's: all, its critic (both "
        "streams of the values), or linear (their last layers)",
        choices=("all", "critic", "linear"),
        default="all",
    )


@dataclass(frozen=True)
class EvaluationSettings(Config):
    title = "evaluation while training"

    eval_steps: int = setting(
        "environment steps between two evaluations; 0: none", low=0, high=10**12, default=0
    )
    eval_episodes: int = setting(
        "episodes of an evaluation", low=1, high=1000, default=10, needs="eval_steps"
    )


@dataclass(frozen=True)
class LoggerSettings(Config):
    title = "logs"

    showcase_minutes: float | None = setting(
        "minutes between an episode's movie, words and attention in TensorBoard; null: never",
        low=0,
        high=100_000,
        has_effect=False,
        default=10.0,
    )
    wandb: bool = setting(
        "send metrics to Weights & Biases as well", has_effect=False, safe=(False,), default=False
    )


@dataclass(frozen=True)
class ScalingSettings(Config):
    title = "reward scaling"

    normalize_reward: bool | None = setting(
        "divide rewards by the running deviation of their return, and clip them; null: as the "
        "suite's published settings do, and without a clip in Gymnasium ids and given objects",
        default=None,
    )
    reward_clip: float | None = setting(
        "limit of a scaled reward's size, where it is clipped; null: none",
        low=0,
        high=1e6,
        default=REWARD_CLIP,
    )


@dataclass(frozen=True)
class DoubleDqnSettings(Config):
    title = "DQN and EllmDQN"

    update_dtype: str = setting(
        "type of products in a gradient step: float32, or bfloat16 by automatic mixed precision",
        choices=("float32", "bfloat16"),
        default="float32",
    )
    epsilon_final: float | None = setting(
        "share of random actions in the end; null: of DQN one in the longest episode of the "
        "warm-up, of EllmDQN 0.01",
        low=0,
        high=1,
        default=None,
    )


@dataclass(frozen=True)
class OptimizerSettings(Config):
    title = "optimiser"

    optimizer: str | None = setting(
        "Adam, AdamW or RMSprop, with PyTorch's defaults; null: AdamW with PPO, else Adam",
        choices=("Adam", "AdamW", "RMSprop"),
        default=None,
    )


@dataclass(frozen=True)
class ScheduleSettings(Config):
    title = "schedules"

    lr_decay: str = setting("learning-rate schedule", choices=DECAYS, default="none")
    min_lr: float = setting(
        "learning rate at the end of a linear schedule", low=0, high=10, default=1e-07
    )
    lr_decay_start: float = setting(
        "fraction of the run before the decay starts", low=0, high=1, default=0.0
    )
    lr_decay_end: float = setting(
        "fraction of the run at which a linear decay ends", low=0, high=1, default=1.0
    )
    lr_decay_factor: float = setting(
        "factor per update of an exp schedule", low=0, high=1, default=0.99
    )
    ent_coef: float = setting(
        "weight of the entropy bonus at the start", low=0, high=1e6, default=0.05
    )
    ent_decay: str = setting("entropy schedule", choices=DECAYS, default="none")
    min_ent_coef: float = setting(
        "entropy weight at the end of a linear schedule", low=0, high=1e6, default=0.0001
    )
    ent_decay_start: float = setting(
        "fraction of the run before the decay starts", low=0, high=1, default=0.0
    )
    ent_decay_end: float = setting(
        "fraction of the run at which a linear decay ends", low=0, high=1, default=1.0
    )
    ent_decay_factor: float = setting(
        "factor per update of an exp schedule", low=0, high=1, default=0.99
    )
    clip_range: float = setting(
        "clip range of the policy ratio at the start", low=0, high=1e6, default=0.2
    )
    clip_decay: str = setting(
        "clip-range schedule, linear ends at 0", choices=("none", "linear"), default="none"
    )


@dataclass(frozen=True)
class PpoSettings(OptimizerSettings, ScheduleSettings):
    title = "PPO"

    n_rollout_steps: int = setting(
        "steps per environment and rollout", low=1, high=MOST_SAMPLES, default=128
    )
    n_epochs: int = setting("passes over each rollout", low=1, high=1000, default=3)
    n_batches: int = setting(
        "minibatches per pass (agents that learn from single steps)",
        low=1,
        high=MOST_SAMPLES,
        default=8,
    )
    gae_lambda: float = setting(
        "lambda of generalised advantage estimation", low=0, high=1, default=0.99
    )
    clip_range_vf: float | None = setting(
        "clip range of the value; null does not clip", low=0, high=1e6, default=None
    )
    vf_coef: float = setting("weight of the value loss", low=0, high=1e6, default=0.5)
    max_grad_norm: float = setting("largest norm of the gradient", low=0, high=1e6, default=0.5)
    target_kl: float | None = setting(
        "KL divergence from the rollout's policy at which an update's passes end; null: none",
        low=0,
        high=1e6,
        default=None,
    )
    adv_norm: bool = setting(
        "divide advantages by a running deviation, not a minibatch's", default=False
    )
    bootstrap_truncated: bool = setting(
        "add the value of the last observation at a time limit", default=False
    )


@dataclass(frozen=True)
class CapacitySettings(KeptSettings):
    title = "replay"

    replay_capacity: int | None = setting(
        "steps kept; null: a million; DQN, SAC, TD3: a thousand episodes if that is more",
        low=2,
        high=10**10,
        default=None,
    )
    batch_size: int = setting(
        "sequences, of EllmDQN steps, per gradient step", low=1, high=1_000_000, default=64
    )


@dataclass(frozen=True)
class FrameReplaySettings(CapacitySettings):
    title = "EllmDQN: replay"

    n_step: int = setting("steps of an n-step return (its n)", low=1, high=1000, default=3)
    replay_sampling: str = setting(
        "draw uniformly an episode, then a step of it; or any step",
        choices=(EPISODE, STEP),
        default=EPISODE,
    )


@dataclass(frozen=True)
class NStepDqnSettings(OptimizerSettings, FrameReplaySettings, DoubleDqnSettings, FinetuneSettings):
    title = "EllmDQN"

    learning_starts: int = setting(
        "environment steps before the first gradient step", low=0, high=10**12, default=5000
    )
    train_frequency: int = setting(
        "environment steps for each gradient step", low=1, high=1_000_000, default=4
    )
    target_update_steps: int = setting(
        "environment steps between two copies of the heads into the target network",
        low=1,
        high=10**12,
        default=8000,
    )
    clip_reward: bool = setting("learn from rewards cut to -1 .. 1", default=True)
    return_dtype: str = setting(
        "type of an n-step return: float16 as in the published code, or float32",
        choices=("float16", "float32"),
        default="float16",
    )
    epsilon_start: float = setting(
        "share of exploring actions at the start", low=0, high=1, default=1.0
    )
    epsilon_steps: int = setting(
        "environment steps over which epsilon falls", low=0, high=10**12, default=1_000_000
    )
    wait_for_reward: bool = setting(
        "take no gradient step, and let epsilon stay, before rewards have come to 1 in all",
        default=False,
    )
    guide: str | None = setting(
        "run folder or checkpoint of an agent that explores: its greedy actions take the place of "
        "some random ones; null: none",
        default=None,
        safe=(None,),
    )
    guide_share: float = setting(
        "share of exploring actions that are the guide's", low=0, high=1, default=GUIDE_SHARE
    )
    log_steps: int = setting(
        "environment steps from one row of metrics to the next",
        low=1,
        high=10**9,
        has_effect=False,
        default=1000,
    )


@dataclass(frozen=True)
class ReplaySettings(CapacitySettings):
    title = "DQN, SAC and TD3: replay"

    context_length: int = setting(
        "steps of a sequence that is learned from; -1: the whole episode",
        low=-1,
        high=1_000_000,
        default=WHOLE,
    )


@dataclass(frozen=True)
class OffPolicySettings(OptimizerSettings, ReplaySettings, OffPolicyNetworkSettings):
    title = "DQN, SAC and TD3"

    tau: float = setting(
        "share of the online network that its target takes over at each gradient step",
        low=0,
        high=1,
        default=0.005,
    )
    warmup_episodes: int = setting(
        "episodes of random actions to begin with", low=1, high=1_000_000, default=10
    )
    replay_ratio: float = setting(
        "gradient steps for each environment step", low=0, high=1000, default=0.25
    )


@dataclass(frozen=True)
class DqnSettings(OffPolicySettings, DoubleDqnSettings):
    title = "DQN"

    exploration_fraction: float = setting(
        "share of the run, its warm-up apart, over which epsilon falls from 1",
        low=0,
        high=1,
        default=0.1,
    )


@dataclass(frozen=True)
class TwinCriticSettings(OffPolicySettings):
    title = "SAC and TD3"

    shared_encoder: bool = setting(
        "policy and critics see through one encoder and memory, trained by both", default=True
    )
    freeze_critic: bool = setting(
        "with shared_encoder: the policy's loss leaves critics and their view alone; with "
        "continuous actions the policy, too, sees what the critics have learned to see",
        default=True,
        needs="shared_encoder",
    )
    actor_learning_rate: float | None = setting(
        "without shared_encoder: learning rate of the policy and its body; null: learning_rate",
        low=0,
        high=10,
        default=None,
    )
    critic_learning_rate: float | None = setting(
        "without shared_encoder: learning rate of the critics and their body; null: learning_rate",
        low=0,
        high=10,
        default=None,
    )


@dataclass(frozen=True)
class SacSettings(TwinCriticSettings):
    title = "SAC"

    temperature: float = setting(
        "weight of the entropy; the first one where it is learned (of discrete actions that is 1)",
        low=0,
        high=1e6,
        default=0.1,
    )
    learn_temperature: bool = setting("adapt the temperature to target_entropy", default=False)
    target_entropy: float = setting(
        "entropy to keep, as a share of that of uniform actions; of A continuous numbers it is -A",
        low=0,
        high=1,
        default=0.7,
        needs="learn_temperature",
    )
    temperature_learning_rate: float = setting(
        "learning rate of the temperature", low=0, high=10, default=3e-4, needs="learn_temperature"
    )


@dataclass(frozen=True)
class Td3Settings(TwinCriticSettings):
    title = "TD3"

    exploration_noise: float = setting(
        "deviation of the noise that is added to actions", low=0, high=1, default=0.1
    )
    target_noise: float = setting(
        "deviation of the noise of actions that targets are computed of", low=0, high=1, default=0.2
    )
    target_noise_clip: float = setting("largest of that noise", low=0, high=1, default=0.5)
    policy_delay: int = setting(
        "gradient steps of the critics for each of the policy; 2 in the paper, 1 in Memory-RL",
        low=1,
        high=1000,
        default=1,
    )
    actor_value: str = setting(
        "what the policy is to raise: the first critic's value, or the least of both, as in "
        "Memory-RL's branch of continuous tasks",
        choices=("first", "least"),
        default="first",
    )


@dataclass(frozen=True)
class RunSettings(CheckpointSettings, EvaluationSettings, LoggerSettings):
    """The settings of every run, beside its learner's, agent's and environment's."""


# What each learner reads; its class says so, too, for those that derive from it.
READS = {
    "PPO": (PpoSettings,),
    "DQN": (DqnSettings,),
    "SAC": (SacSettings,),
    "TD3": (Td3Settings,),
    "EllmDQN": (NStepDqnSettings,),
}
