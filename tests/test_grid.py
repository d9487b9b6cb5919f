import json
import re
from pathlib import Path

import pytest

from sweeps.grid import check_runs, make_grid, parse_lists
from tests.bad_inputs.harness import in_one_line
from utils.errors import UserError
from utils.given_settings import load_config
from utils.run_folder import create_run_folder, locked, mark_finished


def settings_file(path, **values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))
    return path


def test_every_combination_is_a_run_and_one_seed_of_everything_comes_first():
    lists = parse_lists(["model=HELM,CNN-PPO", "learning_rate=1e-4,3e-4", "seed=0,1"])
    runs = make_grid([], lists)
    assert [(run.config.seed, run.config.model, run.config.learning_rate) for run in runs] == [
        (seed, model, rate)
        for seed in (0, 1)
        for model in ("HELM", "CNN-PPO")
        for rate in (1e-4, 3e-4)
    ]


def test_a_folder_is_named_by_what_tells_the_run_apart(tmp_path):
    mine = settings_file(tmp_path / "mine.json", mem_len=7)
    general = settings_file(tmp_path / "config.json", mem_len=8)
    runs = make_grid([mine, general], {"learning_rate": ["1e-4"], "seed": ["3"]}, "trial")
    names = [f"trial_{name}learning_rate=1e-4_seed=3" for name in ("mine_", "")]
    assert [run.run_id for run in runs] == names
    assert runs[0].folder == Path("experiments/HELM/MiniGrid-KeyCorridorS3R1-v0", runs[0].run_id)


def test_a_setting_goes_to_the_models_and_environments_that_read_it(caplog):
    runs = make_grid([], {"model": ["CNN-PPO", "SHELM"], "topk": ["1", "2"], "seed": ["0", "1"]})
    names = [run.run_id for run in runs if run.config.seed == 1]
    assert names == ["seed=1", "topk=1_seed=1", "topk=2_seed=1"]
    assert len(runs) == 6
    (line,) = caplog.messages
    assert line.startswith("topk is not read by CNN-PPO,")
    caplog.clear()
    make_grid([], {"model": ["LSTM"], "env": ["TMazePassive-v0", "CartPole-v1"], "length": ["9"]})
    (line,) = caplog.messages
    assert line.startswith("length is not read by CartPole-v1,")
    caplog.clear()
    own = {"model": ["LSTM", "examples.my_memory:FirstAgent"], "first_weight": ["2"]}
    assert [run.config.model for run in make_grid([], own)] == own["model"]
    (line,) = caplog.messages
    assert line.startswith("first_weight is not read by LSTM,")


def test_runs_of_settings_files_of_one_name_are_named_by_what_differs(tmp_path):
    paths = {10: tmp_path / "x/config.json", 30: tmp_path / "y/config.json"}
    files = [settings_file(paths[n], env="TMazePassive-v0", length=n) for n in paths]
    runs = make_grid(files, {"seed": ["0", "1"]})
    names = [f"length={length}_seed={seed}" for seed in (0, 1) for length in (10, 30)]
    assert [run.run_id for run in runs] == names


def test_two_different_runs_do_not_share_a_folder(tmp_path):
    alike = [("x", "a/b"), ("y", "a b")]
    paths = {tmp_path / place / "a.json": name for place, name in alike}
    files = [settings_file(path, model="SHELM", embeddings=paths[path]) for path in paths]
    with pytest.raises(UserError, match=r"differ in embeddings, .* Give the settings files"):
        make_grid(files, {})


def test_a_long_name_begins_with_what_differs_and_ends_in_the_seed(tmp_path):
    given = {"n_steps": ["500000"], "n_envs": ["16"], "n_rollout_steps": ["128"]}
    given |= {"memory_width": ["64"], "memory_layers": ["1"], "ent_coef": ["0.01"]}
    given |= {"vf_coef": ["0.5"], "gae_lambda": ["0.95"], "clip_range": ["0.2"]}
    lists = {"model": ["LSTM"], **given, "gamma": ["0.9", "0.99"], "seed": ["0", "1"]}
    names = [run.run_id for run in make_grid([], lists, "long")]
    assert len({*names}) == 4
    for name, gamma, seed in zip(names, ("0.9", "0.99") * 2, "0011", strict=True):
        assert name.startswith(f"long_gamma={gamma}_n_steps=500000_")
        assert len(name) <= 120
        for text in (f"{key}={value}_" for key, values in lists.items() for value in values):
            name = name.replace(text, "")
        assert re.fullmatch(f"long_[0-9a-f]{{8}}_seed={seed}", name)  # no setting is cut


UNREAD = [f"topk={n}: topk is read by SHELM, and this is CNN-PPO" for n in "12"]
MISTAKES = [  # of lists of values, each told once
    (["model=CNN-PPO", "topk=1,2", "seed=0,1"], UNREAD),
    (["gamma=0.9,2", "n_envs=x", "seed=0,1,2"], ["n_envs=x: ", "gamma=2: "]),
    (["learning_rate=1e-4,0.0001"], ["the same settings as"]),
    ([f"seed={','.join(map(str, range(5000)))}", "gamma=0.1,0.2,0.3"], ["larger than"]),
    (["gamma=0.9", "gamma=0.8", "n_envs"], ["gamma is given", "expected KEY=V"]),
]


@pytest.mark.parametrize(("lists", "reasons"), MISTAKES)
def test_every_mistake_of_a_grid_is_told_once(lists, reasons):
    with pytest.raises(UserError) as caught:
        make_grid([], parse_lists(lists))
    for line, reason in zip(caught.value.lines, reasons, strict=True):
        assert reason in line


def test_an_unfinished_or_finished_run_of_the_same_settings_is_welcome(in_empty_folder):
    runs = make_grid([], {"seed": ["0", "1"]})
    for run in runs:
        became = run.config.replace(device="cpu")
        create_run_folder(became, run.run_id, [])
    mark_finished(runs[0].folder)
    check_runs(runs, lambda config: None)
    with locked(runs[1].folder), pytest.raises(UserError, match="another run is writing here"):
        check_runs(runs, lambda config: None)
    assert runs[1].folder.is_dir()


OTHERS = {  # settings and beginnings of the run that has the folder
    r"differs in n_envs, gamma\. Give this sweep a --name": ({"gamma": 0.5, "n_envs": 4}, {}),
    r"first parameters \(--init-from\)": ({}, {"init_checkpoint": {"checkpoint": "/x.pt"}}),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_a_folder_of_another_run_is_refused(reason, in_empty_folder):
    (run,), (changes, options) = make_grid([], {"seed": ["0"]}), OTHERS[reason]
    create_run_folder(run.config.replace(**changes), run.run_id, [], **options)
    with pytest.raises(UserError, match=reason):
        check_runs([run], lambda config: None)


def test_commas_inside_of_an_object_separate_no_values():
    (values,) = parse_lists(['env_args={"a": [1, 2], "b": 3},{}']).values()
    assert values == ['{"a": [1, 2], "b": 3}', "{}"]
    runs = make_grid([], {"env": ["CartPole-v1"], "model": ["CNN"], "env_args": values})
    assert [run.config.env_args for run in runs] == [{"a": [1, 2], "b": 3}, {}]


def agents_file(path, **agents):
    return settings_file(path, env="TMazePassive-v0", n_steps=500, agents=agents)


def test_agents_of_one_file_are_runs_with_what_is_given_for_all(tmp_path):
    file = agents_file(tmp_path / "maze.json", twin={"model": "CNN"}, GPT={"model": "GPT"})
    runs = make_grid([file], {"seed": ["0"], "n_envs": ["8"]})
    names = [f"maze_{name}_n_envs=8_seed=0" for name in ("twin", "GPT")]
    assert [run.run_id for run in runs] == names
    assert [(run.config.model, run.config.n_steps) for run in runs] == [("CNN", 500), ("GPT", 500)]


def test_some_agents_of_the_files_can_be_taken(tmp_path):
    both = agents_file(tmp_path / "a.json", LSTM={"model": "LSTM"}, GPT={"model": "GPT"})
    one = agents_file(tmp_path / "b.json", LSTM={"model": "LSTM"})
    runs = make_grid([both, one], {}, agents=["GPT"])
    assert [run.run_id for run in runs] == ["a_GPT_seed=0"]
    with pytest.raises(UserError, match=r"--agents GTP: .* they have LSTM, GPT\. Did you mean"):
        make_grid([both, one], {}, agents=["GTP"])
    plain = settings_file(tmp_path / "c.json", model="LSTM")
    with pytest.raises(UserError, match=r"--agents LSTM: .* they name none"):
        make_grid([plain], {}, agents=["LSTM"])


@pytest.mark.parametrize(
    ("agents", "line"),
    [
        ([], "agents: [] is no table of agents such as"),
        ({}, "agents: {} is no table of agents such as"),
        ({"a/b": {}}, "agents: 'a/b': use up to 40 letters, digits, + and -"),
        ({"LSTM": 3}, "LSTM: 3 is no table of settings"),
        ({"LSTM": {"n_steps": 3}}, "LSTM: n_steps is given for all agents. Name it once"),
        ({"LSTM": {"modle": "LSTM"}}, "LSTM: unknown key 'modle'. Did you mean 'model'?"),
        ({"CNN": {"model": "CNN", "topk": 2}}, "CNN: topk is read by SHELM, and this is CNN"),
    ],
)
def test_a_mistake_among_agents_gets_a_line_that_names_them(tmp_path, agents, line):
    file = settings_file(tmp_path / "maze.json", n_steps=500, agents=agents)
    with in_one_line(re.escape(f"{file}: {line}")):
        make_grid([file], {})


def test_one_run_is_not_made_of_several_agents_settings(tmp_path):
    file = agents_file(tmp_path / "maze.json", GPT={"model": "GPT"})
    with pytest.raises(UserError, match=r"several agents .* python sweep\.py --config"):
        load_config(file)
