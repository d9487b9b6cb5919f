"""HELM from Python: train a run, resume it, load it and play it step by step.

    import helm

    run = helm.train({"model": "LSTM", "n_steps": 100_000}, env=MyEnv)
    with helm.load(run, env=MyEnv) as player:
        observation = player.reset(seed=0)
        action = player.act(observation)

The names in `__all__` are the public interface; `UserError` is raised for every mistake. Training
is that of main.py; eval.py uses the same parts (trainers/build.py).
"""

import sys
from pathlib import Path

# The user's modules may have the names of ours, on the path or in sys.modules.
if "utils.user_modules" not in sys.modules:
    alike = {name: each for name, each in sys.modules.items() if f"{name}.".startswith("utils.")}
    for name in alike:
        del sys.modules[name]
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import utils.user_modules

    del sys.path[0]
    utils.user_modules.keep_theirs(alike)

# isort: split
import json
import logging
import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv

from analysis.run_data import OutOfOrder, read_columns, read_facts, read_settings_of, run_folders
from envs import EnvLike, given
from main import resume_run, start_run
from trainers.callbacks import Callback
from trainers.settings import RunSettings
from utils.errors import UserError
from utils.given_settings import load_config
from utils.packages import missing
from utils.seeding import N_HELD_OUT, evaluation_seed, seed_everything, streams_kept
from utils.settings import NOTHING, Values, as_json
from utils.user_modules import give_back_programs

if TYPE_CHECKING:
    from models.agent import Agent
    from trainers.learner import Learner
    from trainers.player import Player

give_back_programs()

log = logging.getLogger(__name__)

__all__ = [
    "Callback",
    "Played",
    "Player",
    "UserError",
    "evaluate",
    "load",
    "resume",
    "runs",
    "train",
]


def train(
    settings: Values,
    env: EnvLike | str | None = None,
    agent: type["Agent"] | None = None,
    run_id: str | None = None,
    init_from: str | Path | None = None,
    learner: type["Learner"] | None = None,
    callbacks: Iterable[Callback] = (),
) -> Path:
    """Train a new run and return its folder, experiments/<model>/<env>/<run-id>.

    Args:
        settings: Those that differ from config.json, by name.
        env: Instead of `settings["env"]`: a class or function that makes one Gymnasium
            environment or a vector environment, or the latter itself; or a name, as in settings.
        agent: Instead of `settings["model"]`: an agent class of yours, defined in a file.
        run_id: The folder's name.
        init_from: A run folder or a checkpoint: its parameters are the first ones.
        learner: Instead of `settings["algorithm"]`: a class of yours, defined in a file.
        callbacks: Objects that hear of every update, and choose the options of episodes.

    Raises:
        UserError: a line for each mistake in the arguments; nothing has been written.
    """
    from trainers.ranks import joined_ranks

    if not isinstance(settings, Mapping):
        found = as_json(str(settings))
        raise UserError(f"settings: {found} is no dictionary. Write one: {{'model': 'LSTM'}}")
    values = dict(settings)
    for name, part in (("env", env), ("model", agent), ("algorithm", learner)):
        if part is not None and name in values:
            raise UserError(f"settings: {name} is given, and an object instead. Give one of them")
    if agent is not None:
        values["model"] = _name_of("agent", agent)
    if learner is not None:
        values["algorithm"] = _name_of("learner", learner)
    if isinstance(env, str):
        values["env"], env = env, None
    if isinstance(env, VectorEnv):  # its size is fixed
        values.setdefault("n_envs", env.num_envs)
    texts = _as_texts(settings)  # the run's folder is named after them
    start = None if init_from is None else Path(init_from)
    with given(env) as given_name, joined_ranks() as ranks:
        named = {} if given_name is None else {"env": given_name}
        config = load_config(values=values | named).part(RunSettings)
        return start_run(config, ranks, run_id, texts, start, callbacks=callbacks)


def resume(
    run: str | Path,
    env: EnvLike | None = None,
    trust: bool = False,
    n_steps: int | None = None,
    callbacks: Iterable[Callback] = (),
) -> Path:
    """Resume an unfinished run and return its folder.

    Args:
        run: Its folder.
        env: The environment object, if the run was trained in one.
        trust: Follow its settings to code, addresses and places even if you have not begun the
            run on this machine.
        n_steps: Go on to so many steps, also if the run is finished.
        callbacks: Of the same classes as the run was trained with; their states are restored.

    Raises:
        UserError: it cannot be resumed, or not in that environment.
    """
    from trainers.ranks import joined_ranks

    if n_steps is not None:
        n_steps = load_config(values={"n_steps": n_steps}).n_steps  # checked
    with given(env), joined_ranks() as ranks:
        return resume_run(Path(run), ranks, trust, n_steps, callbacks)


def runs(folder: str | Path = "experiments") -> Any:
    """Return a pandas data frame: a row for each run below a folder.

    Its columns are `folder`, what run.json tells of environment and code (`environment.size`), all
    settings and the last value of every metric.

    Raises:
        UserError: there are no runs, or pandas is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError:
        raise missing("pandas", "runs: a data frame") from None
    rows = []
    for place in run_folders(Path(folder)):
        row = {"folder": str(place), **read_facts(place), **read_settings_of(place)}
        try:
            for name, column in read_columns(place).items():
                row[name] = next((v for v in column[::-1].tolist() if not math.isnan(v)), math.nan)
        except OutOfOrder as error:
            log.warning(f"{error}; its metrics are left out")
        except UserError:  # no rows yet
            pass
        rows.append(row)
    return pandas.DataFrame(rows)


def load(
    run: str | Path, env: EnvLike | None = None, device: str = "auto", trust: bool = False
) -> "Player":
    """Return the agent of a run, to be played step by step in one environment.

    Args:
        run: A run folder (its best agent is loaded) or a checkpoint.
        env: Instead of the run's environment, as for `train`; a vector environment must have one.
        device: auto, cpu or cuda.
        trust: As for `resume`.

    Raises:
        UserError: it is no run, or its agent or environment is not available here.
    """
    from trainers.player import Player, restored

    with ExitStack() as stack:
        found = stack.enter_context(restored(run, env, device, trust, drawn=True))
        return Player(*found, stack.pop_all())


class Played(NamedTuple):
    """An episode of a held-out seed; `success` is None where the environment does not say."""

    seed: int
    episode_return: float
    length: int
    success: bool | None


def evaluate(
    run: str | Path,
    seeds: Iterable[int],
    env: EnvLike | None = None,
    settings: Values = NOTHING,
    greedy: bool = False,
    device: str = "auto",
    trust: bool = False,
) -> list[Played]:
    """Play one episode of each seed with the agent of a run; no random stream of yours moves.

    They are held out: no training meets one. `eval.py --seed N --n-episodes M` plays those from N
    to N + M - 1, and evaluations while training play the first 256.

    Args:
        run: A run folder (its best agent is loaded) or a checkpoint.
        seeds: Whole numbers from 0 to 65,535.
        env: Instead of the run's environment, as for `load`.
        settings: Other settings of the environment; `env_args` is merged with the run's.
        greedy: Take the most probable actions instead of drawing them.
        device, trust: As for `load`.

    Raises:
        UserError: a line for each mistake in the arguments.
    """
    from trainers.evaluation import evaluate as play
    from trainers.player import restored

    numbers = list(seeds)
    wrong: list[object] = [
        each
        for each in numbers
        if not isinstance(each, int | np.integer) or not 0 <= each < N_HELD_OUT
    ]
    if wrong or not numbers:
        told = f"{as_json(wrong[0])} is no seed" if wrong else "there is none"
        raise UserError(
            f"seeds: {told}. Give whole numbers from 0 to {N_HELD_OUT - 1}, such as range(100)"
        )
    played = []
    with (
        streams_kept(),
        restored(run, env, device, trust, texts=_as_texts(settings)) as (config, agent, played_in),
    ):
        for number in map(int, numbers):
            seed = evaluation_seed(number)
            seed_everything(seed, config.deterministic)
            (recording,) = play(agent, played_in, 1, greedy, seed)
            played.append(Played(number, *recording.episode))
    return played


def __getattr__(name: str) -> Any:
    # PyTorch takes seconds to import: `import helm` leaves that to what needs it.
    if name == "Player":
        from trainers.player import Player

        return Player
    raise AttributeError(f"module 'helm' has no attribute '{name}'")


def _as_texts(settings: Values) -> list[str]:
    """Return settings as on a command line."""
    return [
        f"{name}={value if isinstance(value, str) else json.dumps(value, default=str)}"
        for name, value in settings.items()
    ]


def _name_of(argument: str, kind: type) -> str:
    module = kind.__module__
    if module == "__main__":  # a script: its file is the module
        file = vars(sys.modules[module]).get("__file__")
        if file is None:
            raise UserError(f"{argument}: {kind.__name__} is in no file. Save it in one")
        module = Path(file).stem
    return f"{module}:{kind.__qualname__}"
