"""Agents of the user's own, by module:Class."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import eval as eval_program
import main as main_program
from sweeps.grid import make_grid, parse_lists, swept_settings
from tests.bad_inputs.harness import refused
from tests.test_resume import command
from tests.user_code import MY_AGENTS, forget_modules_of
from utils.errors import ROOT
from utils.given_settings import load_config
from utils.settings import all_settings, read_settings

NAME = "my_agents:MyAgent"
TINY = {"memory_width": 8, "n_steps": 64, "echoes": 2}


@pytest.fixture
def folder(in_empty_folder, monkeypatch):
    """Work in a folder with my_agents.py, before anything was trained."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("XDG_STATE_HOME", str(in_empty_folder.parent / "data"))
    Path("my_agents.py").write_text(MY_AGENTS)
    yield in_empty_folder
    forget_modules_of(in_empty_folder)


@pytest.fixture
def elsewhere(tmp_path_factory, monkeypatch):
    """Go to another folder in a process that has not imported anything of the user's."""

    def go(folder):
        monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
        forget_modules_of(folder)
        sys.path[:] = [path for path in sys.path if path != str(folder)]

    return go


def test_it_is_found_again_and_told_when_it_has_changed(folder, elsewhere, capsys, caplog):
    assert main_program.main(command(NAME, "run", **TINY)) == 0
    run = folder / "experiments" / "MyAgent" / "RandomMaze-v0" / "run"
    elsewhere(folder)
    facts = json.loads((run / "run.json").read_text())["user_modules"]["my_agents"]
    assert facts["folder"] == str(folder)
    assert eval_program.main(["--ckpt-path", str(run), "--n-episodes", "1"]) == 0
    (folder / "my_agents.py").write_text(MY_AGENTS + "\n")
    capsys.readouterr()
    assert eval_program.main(["--ckpt-path", str(run), "--n-episodes", "1"]) == 0
    assert f"'my_agents' in {folder} has changed since the run began" in caplog.text
    (folder / "my_agents.py").unlink()
    forget_modules_of(folder)
    refused(capsys, "eval", ["--ckpt-path", str(run)], "'my_agents'", str(folder))


def test_its_settings_are_known_where_it_is_chosen_and_nowhere_else(folder, capsys):
    config = load_config(overrides=[f"model={NAME}", "echoes=4"])
    assert config.echoes == 4
    assert {"echoes", "memory_width"} <= read_settings(config)
    assert "echoes" not in all_settings()
    assert not hasattr(load_config(overrides=["model=LSTM"]), "echoes")
    assert pickle.loads(pickle.dumps(config)) == config
    Path("mine.json").write_text(json.dumps({"model": NAME, "echoes": 5}))
    assert main_program.main(["--config", "mine.json", "--print-config"]) == 0
    assert json.loads(capsys.readouterr().out)["echoes"] == 5
    for settings, reason in {
        "echoes=10": "out of range (1 to 9)",
        "topk=2": "is read by SHELM",
        "model=LSTM": "unknown key 'echoes'",
    }.items():
        refused(capsys, "main", ["--config", "mine.json", "--var", settings], reason)
    runs = make_grid([], parse_lists([f"model={NAME}", "echoes=1,2"]))
    runs += make_grid([], {"model": ["LSTM"]})
    assert [run.folder.parts[1] for run in runs] == ["MyAgent", "MyAgent", "LSTM"]
    assert swept_settings(runs) == ["echoes"]


@pytest.mark.parametrize("chosen", [[], [f"--var=model={NAME}"]])
def test_help_lists_its_settings_when_it_is_named(chosen, folder, capsys):
    with pytest.raises(SystemExit):
        main_program.main(["--help", *chosen])
    listed = f"\nEcho (read by {NAME}):\n  echoes (a whole number, default 3)"
    assert (listed in capsys.readouterr().out) == bool(chosen)


MORE = f"""{MY_AGENTS}
from models.agent import ActorCriticAgent
from models.baselines import CnnAgent
from utils.settings import Part

class NoAgent: ...
class Unfinished(ActorCriticAgent): ...
class NoMemory(MemoryAgent): ...
class Remembers(Echo): ...
@dataclass(frozen=True)
class Plain(Part):
    loud: int = 3
@dataclass(frozen=True)
class BadDefault(Part):
    loud: int = setting("how loud", low=1, high=9, default=10)
@dataclass(frozen=True)
class Otherwise(Part):
    gamma: float = setting("discount", low=0, high=2, default=0.99)
class ReadsPlain(CnnAgent): reads = (Plain,)
class ReadsBadDefault(CnnAgent): reads = (BadDefault,)
class ReadsOtherwise(CnnAgent): reads = (Otherwise,)
class ByItself(ActorCriticAgent):
    def initial_memory(self, n_envs): ...
    def act(self, percept, memory, deterministic=False, advance=True): ...
    def evaluate(self, batch): ...
class NeverLooksAhead(ByItself):
    def act(self, percept, memory, deterministic=False): ...
"""
FILES = {
    "my_agents.py": MORE,
    "raises.py": "\n1 / 0\n",
    "leaves.py": "raise SystemExit(3)\n",
    "rewards.py": "def pay(): ...\n",  # one of our packages, too
    "trainers.py": "from models import Registry\n",
    "envs.py": "def given(): ...\n",
    "alike.py": "from utils.files import mine\n",
}
MISTAKES = {
    "nowhere:A": "there is no module 'nowhere'",
    "my_agents.deeper:A": "there is no module 'my_agents.deeper'",
    "alike:A": "utils/files.py is a part of this program: give your module another name",
    "rewards:A": "rewards.py: there is no such class",
    "trainers:A": "cannot import name 'Registry' from 'models'",
    "envs:A": "envs.py and in envs of this program. Give your file another name",
    "raises:A": "importing raises raised ZeroDivisionError: division by zero (",
    "leaves:A": "importing leaves raised SystemExit: 3 (",
    "my_agents:MyAgnt": "there is no such class. Did you mean 'MyAgent'?",
    "my_agents:NoAgent": "is no agent. Derive it from models.agent.ActorCriticAgent",
    "my_agents:Remembers": "It is a memory, which an agent has: class MyAgent(models.baselines",
    "my_agents:Unfinished": "it lacks act, evaluate, initial_memory",
    "my_agents:NeverLooksAhead": "NeverLooksAhead.act takes no `advance`. Give it advance=True",
    "my_agents:NoMemory": "it lacks memory_class",
    "my_agents:ReadsPlain": "`reads` must be a tuple",
    "my_agents:ReadsBadDefault": "loud: 10 is out of range (1 to 9)",
    "my_agents:ReadsOtherwise": "setting 'gamma' is declared by utils.settings.Config and",
    ":A": "':A' is not of the form module:Class",
    "../my_agents:A": "is not of the form module:Class",
    f"{'x' * 5000}:A b": "is not of the form module:Class",
    "models.helm:Helm": "is called HELM. Choose model=HELM",
}


USER = {
    "utils.py": "def clip(x, low, high):\n    return min(max(x, low), high)\n",
    "main.py": "raise SystemExit('mine')\n",
    "analysis.py": "raise SystemExit('mine')\n",
    "models/__init__.py": "",
    "models/sizes.py": "N = 5\n",
    "models/mine.py": "from models.baselines import LstmAgent\n\n\nclass Mine(LstmAgent): ...\n",
    "envs/__init__.py": "from .corridor import Corridor\nfrom utils import clip\n",
    "envs/corridor.py": """
import gymnasium, utils
from gymnasium.envs.classic_control import CartPoleEnv
from models.sizes import N

class Corridor(CartPoleEnv):
    def step(self, action):
        return super().step(utils.clip(action, 0, N))

gymnasium.register("Corr-v0", "envs.corridor:Corridor", max_episode_steps=20)
""",
    "script.py": """
IMPORTS
if __name__ == "__main__":
    settings = {"model": "models.mine:Mine", "n_envs": 2, "n_rollout_steps": 16, "n_steps": 64}
    settings |= {"memory_width": 8, "device": "cpu", "showcase_minutes": None}
    here = {"env": "envs.corridor:Corr-v0", "env_processes": True}
    for run in helm.train(settings | here, run_id="run"), helm.train(settings, env=Corridor):
        with helm.load(run, env=None if "Corr-v0" in str(run) else Corridor) as player:
            player.act(player.reset(seed=0))
    try:
        import main
    except SystemExit as error:
        print("main is", error)
""",
}
ORDERS = "import helm\nfrom envs.corridor import *", "from envs.corridor import *\nimport helm"


@pytest.mark.slow
@pytest.mark.parametrize("imports", ORDERS)
def test_modules_of_the_users_stand_beside_ours_of_the_same_names(imports, folder, monkeypatch):
    for name, content in USER.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content.replace("IMPORTS", imports))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    eval_it = [str(ROOT / "eval.py"), "--n-episodes=1", "--ckpt-path=experiments/Mine/Corr-v0/run"]
    for words, last in ((["script.py"], "main is mine"), (eval_it, "written to ")):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert last in done.stdout


def test_a_mistake_in_an_agent_gets_one_line(folder, capsys):
    for name, content in FILES.items():
        Path(name).write_text(content)
    found = {name: refused(capsys, "main", [f"--var=model={name}"])[0] for name in MISTAKES}
    assert [name for name, line in found.items() if MISTAKES[name] not in line] == []
    assert all(line.startswith(("model: ", "default: ")) for line in found.values())
    replay = ["--var=model=my_agents:ByItself", "--var=algorithm=DQN"]
    assert "has no memory_class, which DQN puts" in refused(capsys, "main", replay)[0]
    refused(capsys, "sweep", ["--var=model=my_agents:NoAgent", "--seeds=1"], "is no agent")
