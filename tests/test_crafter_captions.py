"""Captions of Crafter read from pixels: the contents of tiles, learning, and runs with captions."""

import math
import signal

import numpy as np
import pytest
import torch

import main as main_program
import prepare_captions
from envs.crafter import CrafterText, sentences, tile_reader
from envs.crafter.captions import Accuracy, TiledFrameBatches, accuracy, tiles_of
from envs.crafter.render import SLEEPER
from envs.crafter.sentences import CENTRE, FIRST_LOOK, KINDS, N_KINDS, facts_of_tiles
from envs.crafter.sentences import said as said_of
from envs.crafter.tile_reader import (
    FILE,
    TileNetwork,
    TileReader,
    load_tile_reader,
    train_tile_reader,
)
from envs.crafter.world import NAMES
from tests.agents import small_config
from tests.bad_inputs.harness import in_one_line, refused
from tests.runs import CNN, PPO, folder_of, resume, signal_at, words_of

TEXT = "CrafterText-v0"
SENTENCES = ("scene", "inventory", "status")


def certain(tiles):
    """Return probabilities without a doubt about the contents of tiles [R, 9, 9]."""
    return np.moveaxis(np.eye(N_KINDS, dtype=np.float32)[tiles], -1, 1)


def random_reader(seed=0):
    torch.manual_seed(seed)
    return TileReader(TileNetwork(N_KINDS, n_features=8))


def make(n_envs=3, seed=0, **changes):
    changes = {"crafter_actions": "good", "crafter_captions": "learned"} | changes
    return CrafterText().make(small_config(env=TEXT, n_envs=n_envs, **changes), seed)


@pytest.fixture(scope="module")
def trained():
    return train_tile_reader(TiledFrameBatches(0, 64, 12), N_KINDS, seed=0, progress=False)


@pytest.fixture(scope="module")
def figures(trained):
    return accuracy(trained, n_steps=10, n_envs=4)


@pytest.mark.slow
def test_who_knows_every_tile_says_what_the_world_says():
    env = make(n_envs=8, crafter_captions="world")
    env.reset()
    generator, n_asleep = np.random.default_rng(0), 0
    for _ in range(80):
        env.step(generator.integers(27, size=8))
        there = said_of(sentences.facts_of_worlds(env.worlds))
        read = said_of(facts_of_tiles(certain(tiles_of(env.worlds))))
        awake = ~env.worlds["sleeping"]
        n_asleep += (~awake).sum()
        for name in ("inventory", "status", "items"):
            assert there[name].tolist() == read[name].tolist()
        assert there["scene"][awake].tolist() == read["scene"][awake].tolist()
    assert n_asleep > 5


@pytest.mark.slow
def test_everything_that_can_be_in_view_is_learned_from():
    found = np.zeros(N_KINDS, dtype=int)
    for _, tiles in TiledFrameBatches(3, 12):
        found += np.bincount(tiles.ravel(), minlength=N_KINDS)
    never = {"player"}  # it is drawn in a direction, or asleep
    assert {kind for kind, n in zip(KINDS, found, strict=True) if n == 0} == never


def test_pictures_are_those_of_their_tiles_and_the_same_each_time():
    batches = TiledFrameBatches(1, 2, 8)
    for (frames, tiles), (again, same_tiles) in zip(batches, batches, strict=True):
        assert np.array_equal(frames, again)
        assert np.array_equal(tiles, same_tiles)
    counters, empty = frames[:, :, 49:63, :63], tiles[:, 7:] == KINDS.index("0")
    cells = counters.reshape(8, 3, 2, 7, 9, 7).any((1, 3, 5))
    assert np.array_equal(cells, ~empty)


def test_a_thing_is_in_view_from_even_odds_over_all_cells():
    chances = certain(np.full((1, 9, 9), NAMES.index("grass")))
    chances[0, FIRST_LOOK, CENTRE[1], CENTRE[0]] = 1
    cow, zombie = NAMES.index("cow"), NAMES.index("zombie")
    chances[0, cow, 0, :2], chances[0, zombie, 0, :2] = 0.3, 0.28
    (seen,) = facts_of_tiles(chances).sight[:, 0]
    assert seen >> cow & 1, "1 - 0.7^2 = 0.51"
    assert not seen >> zombie & 1, "1 - 0.72^2 = 0.48"


def test_a_sleeper_faces_what_stands_around_it_most():
    tiles = np.full((1, 9, 9), NAMES.index("grass"))
    column, row = CENTRE
    tiles[0, row, column] = FIRST_LOOK + SLEEPER
    tiles[0, row, column - 1] = NAMES.index("tree")
    assert "targeting grass" in said_of(facts_of_tiles(certain(tiles)))["scene"][0]
    tiles[0, row, column] = FIRST_LOOK  # awake, to the left
    assert "targeting tree" in said_of(facts_of_tiles(certain(tiles)))["scene"][0]


@pytest.mark.slow
def test_a_few_batches_teach_much_more_than_chance(trained):
    ((frames, tiles),) = TiledFrameBatches(9, 1)
    right = trained(frames).argmax(1) == tiles
    amounts = tiles > KINDS.index("0")
    things = (tiles < FIRST_LOOK) & (tiles != NAMES.index("grass"))
    commonest = np.bincount(tiles[things]).max() / things.sum()
    assert right[amounts].mean() > 0.25, "of nine"
    assert right[things].mean() > 1.5 * commonest


def test_shares_are_counted_by_hand():
    class Knowing:
        fingerprint = "none"

        def __call__(self, frames):
            return np.full((len(frames), N_KINDS, 9, 9), 0.0, np.float32)

    found = accuracy(Knowing(), n_steps=2, n_envs=4)
    assert found.shares["all"]["scene"] == 0, "it says 'you see .', and there is always something"
    assert found.shares["all"]["pictures"] == 1
    assert found.shares["day"]["pictures"] == 1
    in_view, among_true, among_read = found.names["grass"]
    assert (in_view, among_true) == (1, 0)
    assert math.isnan(among_read)


def test_training_follows_its_seed_and_leaves_other_random_numbers_alone():
    batches = list(TiledFrameBatches(0, 2, 4))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    readers = [train_tile_reader(batches, N_KINDS, seed, progress=False) for seed in (1, 1, 2)]
    first, again, other = (reader.fingerprint for reader in readers)
    assert first == again != other
    assert torch.equal(torch.rand(3), expected)


class Noting:
    """Reads as another does and keeps the pictures."""

    fingerprint = "noting"

    def __init__(self, reader):
        self.reader, self.frames = reader, []

    def __call__(self, frames):
        self.frames.append(frames.copy())
        return self.reader(frames)


@pytest.mark.parametrize("image", ["gray", "colour"])
def test_what_is_said_is_what_is_read_from_each_picture(image, monkeypatch):
    reader = Noting(random_reader())
    monkeypatch.setattr(tile_reader, "load_tile_reader", lambda: reader)
    env = make(crafter_image=image, crafter_length=4)
    twin = make(crafter_image="colour", crafter_length=4, crafter_captions="world")
    (shown, info), (picture, truth) = env.reset(), twin.reset()
    for _ in range(9):
        said = said_of(facts_of_tiles(reader.reader(picture["image"])))
        for name in SENTENCES:
            assert info[name].tolist() == said[name].tolist()
        assert info["items"].tolist() == said["items"].tolist()
        assert shown["caption"].tolist() == said["caption"].tolist()
        assert info["scene"].tolist() != truth["scene"].tolist()
        actions = np.arange(3)
        (shown, *_, info), (picture, *_, truth) = env.step(actions), twin.step(actions)
        if "final_obs" in info:
            finals = np.stack([each["image"] for each in truth["final_obs"]])
            last = said_of(facts_of_tiles(reader.reader(finals)))
            assert info["last_scene"].tolist() == last["scene"].tolist()
            assert [each["caption"] for each in info["final_obs"]] == last["caption"].tolist()
        for name in ("phrase", "eval_success", "around_target"):
            assert info[name].tolist() == truth[name].tolist()


def test_what_is_saved_is_loaded(tmp_path):
    reader = random_reader()
    reader.about["seed"] = 3
    path = reader.save(tmp_path / "data")
    loaded = load_tile_reader(tmp_path / "data")
    frames = np.random.default_rng(0).integers(256, size=(2, 3, 64, 64), dtype=np.uint8)
    assert np.array_equal(loaded(frames), reader(frames))
    assert loaded.fingerprint == reader.fingerprint != random_reader(1).fingerprint
    assert loaded.about == {"seed": 3}
    assert [file.name for file in path.parent.iterdir()] == [FILE]


LAST_LAYER = {"output.weight": torch.zeros(N_KINDS, 8, 1, 1)}
DAMAGES = {
    "text": lambda path: path.write_bytes(b"nothing of the kind"),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "foreign": lambda path: torch.save({"views": torch.zeros(3)}, path),
    "a layer less": lambda path: torch.save({"network": LAST_LAYER, "about": {}}, path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_file_is_refused_in_one_line(damage, tmp_path):
    DAMAGES[damage](random_reader().save(tmp_path))
    with in_one_line("captions.pt: not a file of prepare_captions.py"):
        load_tile_reader(tmp_path)


def run_settings(run_id):
    given = {"env": TEXT, "crafter_captions": "learned", "crafter_actions": "good"}
    given |= {"crafter_length": 5, "n_steps": 32, "n_rollout_steps": 8, "checkpoint_minutes": 0}
    given |= {"use_text": "false", "suggester": "oracle", "goal_encoder": "same-text"}
    return [*words_of(PPO | CNN | given), "--run-id", run_id]


def test_a_run_without_the_reader_says_what_to_run(in_empty_folder, capsys):
    (line,) = refused(capsys, "main", run_settings("tiny"))
    expected = "crafter_captions: data/crafter-captions.pt is missing. Run: python prepare_captions"
    assert expected in line


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_reader_alone(trained, in_empty_folder, monkeypatch, capsys):
    trained.save()
    signal_at(monkeypatch, signal.SIGINT, at=5)
    assert main_program.main(run_settings("cut")) == 130
    assert trained.fingerprint in (folder_of("cut") / "run.json").read_text()
    random_reader().save()
    assert resume("cut") == 2
    assert "crafter_captions: they are read by other weights" in capsys.readouterr().err
    trained.save()
    assert resume("cut") == 0


@pytest.mark.slow
def test_the_program_trains_once_and_tells(trained, figures, in_empty_folder, monkeypatch, capsys):
    asked = []

    def train(batches, n_kinds, seed):
        asked.append(len(batches))
        return trained

    monkeypatch.setattr(prepare_captions, "train_tile_reader", train)
    monkeypatch.setattr(prepare_captions, "accuracy", lambda reader: figures)
    for _ in range(2):
        assert prepare_captions.main(["--n-batches", "7"]) == 0
    assert asked == [7]
    first, second = capsys.readouterr().out.split("data/crafter-captions.pt is written\n")
    assert first in second
    assert second.endswith("data/crafter-captions.pt is up to date, nothing to be done\n")
    assert f"{figures.shares['day']['faced']:.2%}" in first
    kept = Accuracy(**load_tile_reader().about["accuracy"])
    assert kept.shares == figures.shares


@pytest.mark.parametrize("mistake", ["--n-batches=0", "more", "--data-folder=file/data"])
def test_a_mistake_gets_one_line_and_leaves_nothing(mistake, in_empty_folder, capsys):
    (in_empty_folder / "file").touch()
    assert prepare_captions.main([mistake]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.strip().splitlines()) == 1, captured.err
    assert captured.out == ""
    assert [path.name for path in in_empty_folder.iterdir()] == ["file"]
