"""Every fast part against its plain version, and the programs that print the figures."""

import json
import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.spaces.utils import flatten
from gymnasium.vector.utils import iterate

from benchmarks import __main__ as benchmarks
from benchmarks import frame_replay, training
from benchmarks.comparing import Pair, Round, Runner, compare, largest_difference
from benchmarks.random_models import TINY, write_transformer_xl
from benchmarks.shares import PARTS, Clock
from benchmarks.tables import Table
from benchmarks.update import ours, plain
from envs import make_vector_env
from models.language import load_language_model
from settings import load_config


def counted(begin):
    """Yield work whose results count up."""
    while True:
        yield partial(torch.full, (2,), float(begin))
        begin += 1


@pytest.mark.parametrize("name", [name for name in benchmarks.PARTS if name != "update"])
def test_ours_does_what_the_plain_version_does(name):
    figures = [compare(pair, threads=1, apart=False) for pair in benchmarks.pairs(name, quick=True)]
    incomparable = {row.name for row in figures if row.difference is None}
    assert all(row.endswith(" step") or "dropout" in row for row in incomparable)
    bound = 0.1 if name == "bfloat16" else 1e-4
    assert max(row.difference for row in figures if row.name not in incomparable) < bound


@pytest.mark.parametrize("all_differ", [False, True])
def test_both_updates_take_the_same_steps(all_differ):
    expected, found = (next(version(TINY, 8, all_differ))() for version in (plain, ours))
    # Single parameters whose gradient is next to nothing may go either way: AdamW divides by it.
    assert (found - expected).abs().mean() < 1e-5
    assert (found - expected).abs().max() < 1e-3


def test_an_update_is_repeated_from_the_same_start():
    works = ours(TINY, 8, False)
    assert torch.equal(next(works)(), next(works)())


def test_results_of_the_same_work_are_compared():
    pair = Pair("", partial(counted, 0), partial(counted, 3), rounds=2, repeats=2, note="three")
    figures = compare(pair, threads=1, apart=False)
    assert figures.difference == 3
    assert figures.note == "three"


def test_nan_is_the_largest_difference_and_nothing_is_none():
    rounds = [Round(1.0, np.array([1.0])), Round(1.0, np.array([2.0]))]
    broken = [Round(1.0, np.array([1.5])), Round(1.0, np.array([math.nan]))]
    assert largest_difference(rounds, broken) == math.inf
    assert largest_difference([Round(1.0, None)], [Round(1.0, None)]) is None


def test_a_version_in_a_process_of_its_own_gives_the_same_results():
    with Runner(partial(counted, 5), threads=1, apart=True) as runner:
        found = [runner.advance().result.tolist() for _ in range(2)]
        assert runner.peak_megabytes() > 1
    assert found == [[5, 5], [6, 6]]


def test_the_program_prints_its_tables_and_writes_them(tmp_path, capsys):
    path = tmp_path / "figures.json"
    options = ["--quick", "--threads", "1", "--only", "hopfield", "growth", "--json", str(path)]
    assert benchmarks.main(options) == 0
    figures = json.loads(path.read_text())
    assert [row["name"] for row in figures["parts"]] == ["FrozenHopfield, 16 tokens"]
    assert {row["setting"] for row in figures["growth"]} == {"n_envs", "mem_len", "n_layer", "topk"}
    printed = capsys.readouterr().out
    assert str(figures["machine"]["torch"]) in printed
    assert "FrozenHopfield, 16 tokens" in printed


@pytest.mark.parametrize("program", [benchmarks, training])
def test_a_misspelt_name_is_answered_with_the_closest(program, capsys):
    option, name = ("--only", "hopfeld") if program is benchmarks else ("--agents", "CNN-PO")
    assert program.main([option, name]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "Did you mean" in line


def test_a_table_shows_what_is_missing(capsys):
    table = Table(name="<6", per_cent=">9.1%")
    table.row("a", 0.5)
    table.row("b", None)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["name", "per", "cent"], ["a", "50.0%"], ["b", "–"]]


def test_time_counts_for_the_innermost_part(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr("benchmarks.shares.time.perf_counter", lambda: float(next(now)))
    clock = Clock()
    acting = clock.timed(lambda: clock.timed(lambda: None, PARTS[1])(), PARTS[0])
    acting()
    acting()
    assert dict(clock.seconds) == {"rest": 2, PARTS[0]: 4, PARTS[1]: 2}
    assert sum(clock.shares().values()) == pytest.approx(1)


SHORT = ("n_envs=2", "n_rollout_steps=8", "n_batches=2", "n_epochs=1", "save_ckpt=false")


def options(**changes):
    return training.Options(48, 16, 1, "cpu", overrides=SHORT)._replace(**changes)


@pytest.fixture
def in_this_process(monkeypatch):
    monkeypatch.setattr(
        training, "in_own_process", lambda function, *given, seconds=None: function(*given)
    )


@pytest.mark.parametrize("name", ["CNN-PPO", "Impala-PPO", "HELM"])
def test_an_agent_is_trained_and_its_time_accounted_for(name, in_this_process):
    run = training.measured(name, options())
    assert run.rate > 0
    assert run.steady > 0
    assert sum(run.shares.values()) == pytest.approx(1)
    used = {part for part, share in run.shares.items() if share > 0}
    reads = {"language model", "observation → language"}
    assert used & reads == (reads if name == "HELM" else set())
    assert set(PARTS) - reads <= used


def test_a_run_no_longer_than_its_warm_up_is_never_steady(in_this_process):
    run = training.measured("CNN-PPO", options(warm_up=48, shares=False))
    assert (run.steady, run.shares) == (None, {})


@pytest.mark.parametrize("name", training.RIVALS)
def test_a_rival_trains_on_the_same_environments(name, in_this_process):
    run = training.measured(name, options())
    assert run.rate > 0
    assert run.peak_mb > 0


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "popgym-RepeatPreviousEasy-v0", "popgym-AutoencodeEasy-v0"]
)
def test_a_rival_trains_on_numbers_too(env, in_this_process):
    assert training.measured("RecurrentPPO", options(overrides=(f"env={env}", *SHORT))).rate > 0


def test_a_rival_sees_a_dictionary_of_numbers_as_one_vector():
    from benchmarks.rivals import Sb3Environments

    config = load_config(None, ["env=popgym-AutoencodeEasy-v0", *SHORT])
    env, seen = (make_vector_env(config, 0) for _ in range(2))
    space, rival = env.single_observation_space, Sb3Environments(seen)

    def flat(shown):
        return np.stack([flatten(space, one) for one in iterate(env.observation_space, shown)])

    rival.seed(0)
    np.testing.assert_array_equal(rival.reset(), flat(env.reset(seed=0)[0]))
    actions = np.zeros(env.num_envs, np.int64)
    n_ended = 0
    while not n_ended:
        shown, _, _, _, info = env.step(actions)
        rows, _, ended, infos = rival.step(actions)
        np.testing.assert_array_equal(rows, flat(shown))
        for n in np.flatnonzero(ended):
            last = flatten(space, info["final_obs"][n])
            np.testing.assert_array_equal(infos[n]["terminal_observation"], last)
        n_ended = ended.sum()


def test_a_rival_says_what_it_cannot_see(in_this_process, capsys):
    overrides = ("env=BabyAI-GoToRedBall-v0", *SHORT)
    assert training.report_runs(["PPO"], options(overrides=overrides)) == []
    assert "skipped: PPO sees an image or numbers here" in capsys.readouterr().out


def test_rivals_run_beside_those_they_are_like():
    recurrent = ["RecurrentPPO", "RecurrentPPO-default"]
    assert training.with_rivals(["HELM", "Impala-PPO"]) == ["HELM", "Impala-PPO", *recurrent]
    assert training.with_rivals([*recurrent, "Impala-PPO"]) == ["Impala-PPO", *recurrent]
    assert training.with_rivals(["CNN-PPO", "HELM"]) == ["CNN-PPO", "PPO", "HELM"]
    assert training.with_rivals(["RecurrentPPO"]) == ["RecurrentPPO"]


def test_rivals_differ_in_batches_and_lstms():
    from benchmarks.rivals import rival

    config = load_config(None, ["n_batches=8"])
    alone, like_ours, default = (rival(name, config) for name in training.RIVALS)
    assert (alone.batch_size, like_ours.batch_size, default.batch_size) == (256, 1024, 128)
    assert like_ours.policy.lstm_critic is None
    assert default.policy.lstm_critic.hidden_size == 256


def test_an_agent_without_its_files_is_skipped_with_what_to_do(
    in_this_process, in_empty_folder, capsys
):
    assert training.report_runs(["SHELM"], options()) == []
    assert "skipped: data/grid-clip" in capsys.readouterr().out


def test_a_random_model_is_loaded_as_published_ones_are(tmp_path):
    assert write_transformer_xl(tmp_path, TINY) == [f"language_model={tmp_path}"]
    model = load_language_model(tmp_path, mem_len=4)
    assert (model.n_layer, model.width, model.embeddings.n_tokens) == (2, 32, 16)
    assert len(model.vocabulary) == 16


def test_a_replay_of_frames_is_filled_and_drawn_from(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(frame_replay, "N_BATCHES", 2)
    assert frame_replay.main(["--rows", "6500", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    rows = dict(re.split(r"  +", line) for line in printed.splitlines()[1:] if line)
    n_bytes = 84 * 84 + 8 + 1 + 4 + 1  # of a row: a frame, a sentence, an action, reward, goes on
    assert rows["rows"] == "6,432"  # two rounds of 16 episodes of 201 rows
    assert rows["on the disk"] == f"{6432 * n_bytes / 1e9:.2f} GB"
    assert not list(tmp_path.iterdir())


def test_a_replay_that_no_round_of_episodes_fits_into_is_refused(capsys):
    assert frame_replay.main(["--rows", "3215"]) == 2
    assert "--rows" in capsys.readouterr().err
