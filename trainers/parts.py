"""The parts of a run by name; help and wrong settings are told without loading PyTorch."""

# This file and trainers/build.py alone know environments, agents and rewards by name.

from typing import Any

from envs import ENVIRONMENTS, check_env_name, clips_rewards
from envs.settings import POPGYM
from models import AGENTS
from models import validate_config as model_contradictions
from rewards import CURIOSITIES
from rewards.settings import CuriositySettings, GoalSettings, goal_contradictions
from rewards.suggesters import SUGGESTERS
from trainers.settings import READS, REWARD_CLIP, RunSettings, ScalingSettings
from utils.settings import OwnRegistry, Program, install, needless, read_settings
from utils.user_modules import telling


class Learners(OwnRegistry):
    base = "trainers.learner:Learner"


LEARNERS = Learners(
    "algorithm",
    {
        "PPO": "trainers.ppo:PPO",
        "DQN": "trainers.dqn:DQN",
        "SAC": "trainers.sac:SAC",
        "TD3": "trainers.td3:TD3",
        "EllmDQN": "trainers.ellm_dqn:EllmDQN",
    },
    "learner",
    READS,
)


def validate_config(config: Any) -> list[str]:
    goals = [*needless(config, read_settings(config)), *goal_contradictions(config)]
    choice = config.normalize_reward
    is_known = ENVIRONMENTS.known_as(config.env) is not None
    clips = is_known and (clips_rewards(config.env) if choice is None else choice)
    if is_known and not clips and config.reward_clip != REWARD_CLIP:
        goals.append(
            f"reward_clip: {config.reward_clip} has no effect, rewards of {config.env} are not "
            "clipped. Add normalize_reward=true, or leave it out"
        )
    is_shown = config.popgym_previous_action and ENVIRONMENTS.known_as(config.env) == POPGYM
    if is_shown and config.last_action_input:
        goals.append(
            "last_action_input: true, and popgym_previous_action shows the last action in the "
            "observation already. Leave one of them at false"
        )
    if not (LEARNERS.known_as(config.algorithm) and AGENTS.known_as(config.model)):
        return goals
    agent, curiosity = AGENTS.find(config.model), CURIOSITIES.known_as(config.curiosity or "")
    learner = LEARNERS.find(config.algorithm)
    if curiosity and not learner.takes_reward:
        goals.append(
            f"curiosity: {config.curiosity} is not read by {config.algorithm}. Let it learn from "
            "`reward` and set takes_reward = True there, or leave curiosity out"
        )
    # A user's class may raise anything here: it is told as that class's fault.
    with telling(config):
        problems = [
            *goals,
            *model_contradictions(config),
            *learner.validate_config(config, agent),
        ]
        if curiosity:
            problems += CURIOSITIES.find(curiosity).validate_config(config, agent)
        return problems


REGISTRIES = (LEARNERS, AGENTS, ENVIRONMENTS, SUGGESTERS, CURIOSITIES)
install(
    Program(
        {registry.setting: registry for registry in REGISTRIES},
        (ScalingSettings, GoalSettings, CuriositySettings, RunSettings),
        validate_config,
        check_env_name,
    )
)
