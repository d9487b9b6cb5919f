from pathlib import Path

import pytest

import main as main_program
import prepare_embeddings
from models.grid_clip import GridClip, ViewEncoder
from models.word_embeddings import PROMPTS, PromptEmbeddings
from tests.published_models import TRANSFORMER_XL, tiny_model_folder
from tests.runs import PPO, words_of
from tests.tiny_clip import tiny_clip, tiny_settings


def prepare(*more, clip=None, language_model=TRANSFORMER_XL):
    command = ["--clip-encoder", "tiny-vit", "--clip-pretrained", str(clip or tiny_clip())]
    command += ["--language-model", str(language_model), "--device", "cpu"]
    return prepare_embeddings.main([*command, *more])


@pytest.mark.slow
def test_a_run_follows_the_file_that_was_prepared_for_it(in_empty_folder, capsys):
    assert prepare() == 0
    path = Path("data/tiny-vit_transfo_xl_k1_minigrid.npz")
    out, errors = capsys.readouterr()
    assert f"{path} is written" in out
    assert "\r" not in errors  # which is no terminal
    settings = PPO | tiny_settings("SHELM") | {"model": "SHELM", "embeddings": path}
    settings |= {"env": "MiniGrid-Empty-5x5-v0"}
    assert main_program.main(words_of(settings)) == 0


def test_a_second_call_says_that_nothing_is_to_be_done(in_empty_folder, capsys):
    assert prepare("--suite", "all") == 0
    written = {path: path.stat().st_mtime_ns for path in Path("data").iterdir()}
    assert len(written) == len(PROMPTS)
    capsys.readouterr()
    assert prepare("--suite", "all") == 0
    assert capsys.readouterr().out.count("nothing to be done") == len(PROMPTS)
    assert {path: path.stat().st_mtime_ns for path in Path("data").iterdir()} == written
    assert prepare("--suite", "avalon", clip=tiny_clip(seed=1)) == 0
    assert "avalon.npz is written" in capsys.readouterr().out


def test_files_go_where_they_are_wanted(in_empty_folder):
    bert = tiny_model_folder(in_empty_folder / "bert", "bert")
    (bert / "vocab.txt").write_text("[PAD]\n##key\nkey\n" + "\n".join(f"x{n}" for n in range(27)))
    assert prepare("--data-folder", "elsewhere", language_model=bert) == 0
    found = PromptEmbeddings.read(Path("elsewhere/tiny-vit_bert_minigrid.npz"))
    assert found.tokens.tolist() == ["key"]
    assert found.ids.tolist() == [2]


def test_the_stand_in_is_trained_once_where_it_is_missing(in_empty_folder, monkeypatch, capsys):
    trained = []

    def train_grid_clip(batches, seed):
        assert len(batches) > 0
        trained.append(seed)
        return GridClip(ViewEncoder())

    monkeypatch.setattr(prepare_embeddings, "train_grid_clip", train_grid_clip)
    command = ["--language-model", str(TRANSFORMER_XL), "--device", "cpu"]
    for _ in range(2):
        assert prepare_embeddings.main(command) == 0
    assert len(trained) == 1
    assert capsys.readouterr().out.splitlines() == [
        "data/grid-clip_transfo_xl_k1_minigrid.npz is written",
        "data/grid-clip_transfo_xl_k1_minigrid.npz is up to date, nothing to be done",
    ]
    found = PromptEmbeddings.read(Path("data/grid-clip_transfo_xl_k1_minigrid.npz"))
    assert {"key", "door", "red", "wall"} <= set(found.tokens)
