import html
import io
import sys
from collections import defaultdict
from types import ModuleType

import pytest
from PIL import Image
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

import main as main_program
from analysis.run_data import markdown
from tests.agents import small_config
from tests.bad_inputs.harness import refused
from tests.runs import CNN, PPO, words_of
from tests.test_metrics import CONFIG, write_and_be_interrupted
from utils.loggers import EncodedImage, MetricsWriter


def encoded(format_):
    file = io.BytesIO()
    Image.new("RGB", (4, 3)).save(file, format_)
    return EncodedImage(file.getvalue(), 4, 3, format_)


SHOWN = {"episode/movie": ("video", "gif"), "episode/words": ("image", (4, 3))}
SHOWN |= {"episode/n": ("html", "<pre>| 1 |</pre>")}
MEDIA = {"episode/movie": encoded("gif"), "episode/words": encoded("png"), "episode/n": "| 1 |"}


def test_tensorboard_gets_pictures_movies_and_texts_in_the_one_event_file(tmp_path):
    with MetricsWriter(tmp_path, CONFIG) as writer:
        writer.show(16, MEDIA)
        writer.show(32, {})
    assert len([path for path in tmp_path.rglob("*") if "tfevents" in path.name]) == 1
    events = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(events.Tags()["images"]) == ["episode/movie", "episode/words"]
    (movie,) = events.Images("episode/movie")
    assert (movie.step, movie.width, movie.height) == (16, 4, 3)
    assert movie.encoded_image_string == MEDIA["episode/movie"].data
    assert "episode/n/text_summary" in events.Tags()["tensors"]


def test_a_resumed_run_shows_and_describes_nothing_twice(tmp_path):
    for env_steps in (0, 16):
        with MetricsWriter(tmp_path, CONFIG, env_steps) as writer:
            for later in (16, 32, 48):
                writer.show(env_steps + later, MEDIA)
    events = plugin_event_accumulator.EventAccumulator(str(tmp_path)).Reload()
    for name in ("episode/movie", "episode/n/text_summary"):
        assert [item.step for item in events.Tensors(name)] == [16, 32, 48, 64]
    assert len(events.Tensors("_hparams_/session_start_info")) == 1


def session(folder):
    contents = EventAccumulator(str(folder)).Reload().PluginTagToContent("hparams")
    return {name: HParamsPluginData.FromString(content) for name, content in contents.items()}


def test_the_tab_of_hyper_parameters_finds_settings_and_return(tmp_path):
    config = small_config(n_layer=2)
    with MetricsWriter(tmp_path, config) as writer:
        writer.write(16, {"rollout/return_mean": 0.5})
    found = session(tmp_path)
    hparams = found["_hparams_/session_start_info"].session_start_info.hparams
    assert set(hparams) == config.as_dict().keys()
    assert (hparams["n_layer"].number_value, hparams["model"].string_value) == (2, "HELM")
    assert hparams["clip_range_vf"].string_value == "null"
    (metric,) = found["_hparams_/experiment"].experiment.metric_infos
    assert metric.name.tag == "rollout/return_mean"
    assert "_hparams_/session_end_info" in found


def test_a_run_cut_short_is_not_marked_as_finished(tmp_path):
    with pytest.raises(KeyboardInterrupt), MetricsWriter(tmp_path, CONFIG):
        raise KeyboardInterrupt
    assert set(session(tmp_path)) == {"_hparams_/experiment", "_hparams_/session_start_info"}


class FakeRun:
    """A run as the package keeps it: a row a step, none behind the last."""

    def __init__(self):
        self.rows, self.exit_code = {}, None

    def log(self, row, step):
        if step >= max(self.rows, default=0):
            self.rows[step] = self.rows.get(step, {}) | row

    def define_metric(self, name, step_metric):
        self.step_metric = step_metric

    def finish(self, exit_code):
        self.exit_code = exit_code


@pytest.fixture
def wandb(monkeypatch):
    module = ModuleType("wandb")
    module.__spec__ = object()
    module.Error = type("Error", (Exception,), {})
    module.runs = defaultdict(FakeRun)

    def init(**settings):
        assert settings["resume"] == "allow"
        module.settings = settings
        return module.runs[settings["id"]]

    module.init = init
    module.Image = lambda image: ("image", image.size)
    module.Video = lambda file, format: ("video", format)
    module.Html = lambda text: ("html", text)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_weights_and_biases_gets_settings_rows_and_media(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    folder = tmp_path / "HELM" / "Maze-v0" / "first"
    folder.mkdir(parents=True)
    with MetricsWriter(folder, CONFIG, wandb=True) as writer:
        writer.write(16, {"train/loss": 0.5})
        writer.show(16, MEDIA)
        writer.show(32, {})
    assert (wandb.settings["project"], wandb.settings["name"]) == ("mine", "HELM/Maze-v0/first")
    assert wandb.settings["config"] == CONFIG.as_dict()
    (run,) = wandb.runs.values()
    assert run.rows == {16: SHOWN | {"env_steps": 16, "train/loss": 0.5}}
    assert (run.step_metric, run.exit_code) == ("env_steps", 0)


@pytest.mark.parametrize("word", ["<script>", "<eos>", "a & b"])
def test_text_is_no_html_of_weights_and_biases(word, wandb, tmp_path):
    with MetricsWriter(tmp_path, CONFIG, wandb=True) as writer:
        writer.show(16, {"episode/word_counts": markdown([["word"], [word]])})
    (run,) = wandb.runs.values()
    _, text = run.rows[16]["episode/word_counts"]
    assert html.escape(word) in text
    assert word not in text


def test_a_resumed_run_goes_on_in_the_same_run_of_weights_and_biases(wandb, tmp_path):
    saved = write_and_be_interrupted(tmp_path, wandb=True)
    (run,) = wandb.runs.values()
    assert run.exit_code == 1
    with MetricsWriter(tmp_path, CONFIG, 32, saved, wandb=True) as writer:
        for env_steps in (48, 64):
            writer.write(env_steps, {"train/loss": 0.5})
    assert list(wandb.runs.values()) == [run]
    assert [row["env_steps"] for row in run.rows.values()] == [16, 32, 48, 64]
    assert run.exit_code == 0
    (tmp_path / "another").mkdir()
    with MetricsWriter(tmp_path / "another", CONFIG, wandb=True):
        assert len(wandb.runs) == 2


def test_a_refusal_of_weights_and_biases_is_one_line(wandb, in_empty_folder, capsys):
    def refuse(**settings):
        raise wandb.Error("no API key.\nmore")

    wandb.init = refuse
    words, _ = words_of(PPO | CNN | {"wandb": "true"}), capsys.readouterr()  # of making models
    assert main_program.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("wandb: no API key. Run: wandb login, set WANDB_MODE=offline, or")
    assert list(in_empty_folder.iterdir()) == []


def test_a_missing_package_is_told_before_anything_is_loaded(monkeypatch, in_empty_folder, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (line,) = refused(capsys, "main", ["--var=wandb=true"])
    assert line.startswith("wandb: true needs the package 'wandb'")


@pytest.mark.slow
def test_the_real_package_writes_a_run_without_network(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with MetricsWriter(tmp_path, CONFIG, wandb=True) as writer:
        writer.write(16, {"train/loss": 0.5})
        writer.show(16, MEDIA)
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    assert next(run.glob("run-*.wandb")).stat().st_size > 0
    media = (run / "files" / "media").rglob("episode/*")
    assert {path.suffix for path in media} == {".gif", ".png", ".html"}
