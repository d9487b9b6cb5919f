"""Modules as a user would write them, in a folder of the test's own."""

import sys
from pathlib import Path

MY_AGENTS = Path(__file__).with_name("echo.py").read_text()


MY_ENVS = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

gymnasium.register("MyCartPole-v0", CartPoleEnv, max_episode_steps=20)
"""


def forget_modules_of(folder: Path) -> None:
    """Let Python import a test's modules anew."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(folder):
            del sys.modules[name]
