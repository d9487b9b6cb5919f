"""Whole runs of ELLM by EllmDQN: trained, played, interrupted, guided, finetuned."""

import math
import signal
from pathlib import Path

import pytest
import torch

import main as main_program
from main import build_run
from models.language.load import load_sentence_encoder, with_orthogonal_layers
from tests import runs
from tests.bad_inputs.harness import refused
from tests.runs import ELLM, READS, folder_of, outcome, resume, same, signal_at, words_of
from tests.told_in_words import N_STEPS
from trainers import sequence_replay
from trainers.checkpoint import BEST, LAST, load_checkpoint
from trainers.ellm_dqn import EllmDQN
from trainers.ranks import Ranks
from trainers.settings import RunSettings
from utils.given_settings import load_config

TOLD = "tests.told_in_words:Told-v0"
TINY = ELLM | READS | {"n_steps": 240, "log_steps": 60, "replay_capacity": 90}
pytestmark = pytest.mark.usefixtures("in_empty_folder")


def command(run_id, *more, **changes):
    return [*words_of(TINY | changes), *more, f"--run-id={run_id}"]


def train(run_id, *more, **changes):
    return runs.train_row(run_id, TINY | changes, *more)


def test_a_run_that_is_over_before_its_warmup_says_so(caplog):
    (row,) = outcome(train("run", n_steps=20))["metrics"]
    assert int(row["env_steps"]) == 20
    assert "nothing was learned: the 20 steps were over before learning_starts=30" in caplog.text


def test_updates_and_rows_come_when_they_are_due():
    folder = train("run")
    rows = outcome(folder)["metrics"]
    assert [int(row["env_steps"]) for row in rows] == [60, 120, 180, 240]
    # After the warm-up, and when the first episodes of 6 steps have ended: every fourth step.
    assert [float(row["train/n_gradient_steps"]) for row in rows] == [8, 23, 38, 53]
    assert all(math.isfinite(float(row["train/critic_loss"])) for row in rows)
    assert float(rows[-1]["train/epsilon"]) == pytest.approx(0.01)
    assert float(rows[-1]["train/replay_steps"]) == 84  # whole episodes of 7 rows, of 90 at most


@pytest.mark.slow
def test_an_agent_explores_by_the_hand_of_another_that_stays_the_same(monkeypatch, capsys):
    guide = train("guide")
    given = {"guide": guide, "guide_share": 1, "epsilon_final": 1, "seed": 1}
    followed, act = [], EllmDQN.act

    def acting(self, percept, memory):
        advise, advice = self.guide.agent.act, []

        def advised(*given, **how):
            advice.append(advise(*given, **how))
            return advice[0]

        with monkeypatch.context() as patch:
            patch.setattr(self.guide.agent, "act", advised)
            step = act(self, percept, memory)
        followed.append(torch.equal(step.actions, advice[0].actions))
        return step

    monkeypatch.setattr(EllmDQN, "act", acting)
    train("whole", **given)
    assert len(followed) == 120
    assert all(followed)
    signal_at(monkeypatch, signal.SIGINT, at=50)
    assert main_program.main(command("cut", **given)) == 130
    before = (guide / BEST).read_bytes()
    (guide / BEST).write_bytes((guide / LAST).read_bytes())
    assert resume("cut") == 2
    assert "guide: not the one that the run has begun with" in capsys.readouterr().err
    (guide / BEST).write_bytes(before)
    assert resume("cut") == 0
    assert same(outcome(folder_of("cut")), outcome(folder_of("whole")))


@pytest.mark.slow
@pytest.mark.parametrize("finetune", ["all", "critic", "linear"])
def test_only_what_is_finetuned_changes(finetune):
    short = {"hidden_dim": 32, "n_steps": 60}
    first = train("first", **short)
    start = load_checkpoint(first / BEST)["agent"]
    second = train("second", "--init-from", str(first), finetune=finetune, **short)
    after = load_checkpoint(second / LAST)["agent"]
    changed = {name for name in start if not torch.equal(start[name], after[name])}
    last = {name for name in start if ".4." in name and name.startswith("head.")}
    heads = {name for name in start if name.startswith("head.")}
    assert changed == {"all": set(start), "critic": heads, "linear": last}[finetune]


@pytest.mark.slow
def test_learning_and_decay_wait_for_reward():
    waiting = {"n_steps": 60, "log_steps": 20, "epsilon_steps": 40, "epsilon_final": 0.5}
    never = train("never", env="RandomMaze-v0", wait_for_reward="true", **waiting)
    row = outcome(never)["metrics"][-1]
    assert (row["train/n_gradient_steps"], row["train/epsilon"]) == ("0.0", "1.0")
    paid = train("paid", wait_for_reward="true", **waiting)
    row = outcome(paid)["metrics"][-1]
    assert float(row["train/n_gradient_steps"]) > 0
    assert float(row["train/epsilon"]) < 1


def settings_of(**changes):
    words = [word.removeprefix("--var=") for word in words_of(TINY | changes)]
    return load_config(None, words).part(RunSettings)


@pytest.mark.parametrize(("env", "n_steps"), [(TOLD, N_STEPS), (f"{TOLD[:-3]}Limited-v0", 4)])
def test_frames_are_what_is_told_and_time_limits_are_ends(env, n_steps):
    with build_run(settings_of(env=env), Ranks()) as run:
        run.learner.folder = Path()
        run.collector.begin(0)
        for _ in range(40):
            run.collector.step()
        replay = run.learner.replay
        for number in range(len(replay.episodes)):
            place = replay.episodes[number]
            assert place.length == n_steps
            steps = replay.steps([(place, start) for start in range(n_steps - 1)])
            shown = steps.observations.images[:, -1, -1, -1].tolist()  # tells the step
            assert shown == [40 + 20 * step for step in range(n_steps - 1)]
            assert steps.following.images[:, -1, -1, -1].tolist()[-1] == 40 + 20 * n_steps
            texts = run.learner.agent.reader.sentences.texts(steps.observations.text)
            assert all(text.startswith("go to the ") for text in texts[:, 0])
            assert steps.not_done[:, 0].all()
            assert steps.not_done[:, 1].tolist() == [True] * (n_steps - 2) + [False]


def test_parts_of_an_episode_bootstrap_from_the_step_after_them(monkeypatch):
    monkeypatch.setattr(sequence_replay, "LONGEST_EPISODE", 4)
    with build_run(settings_of(env=TOLD), Ranks()) as run:
        run.learner.folder = Path()
        run.collector.begin(0)
        for _ in range(2 * N_STEPS):
            run.collector.step()
        replay = run.learner.replay
        for place in replay.episodes:
            goes_on = place.length == 4
            assert goes_on or place.length == N_STEPS - 4
            steps = replay.steps([(place, place.length - 2)])
            assert steps.not_done.tolist() == [[True, goes_on]]
            after = 4 if goes_on else N_STEPS
            assert steps.following.images[0, -1, -1, -1] == 40 + 20 * after
        assert len(replay.episodes) == 8


def test_an_orthogonal_text_encoder_is_another_and_always_the_same(encoder):
    features = []
    for init in ("pretrained", "orthogonal", "orthogonal"):
        with build_run(settings_of(text_encoder_init=init), Ranks()) as run:
            agent = run.learner.agent
            numbers = torch.tensor([agent.reader.sentences.numbers(["go to", "the red ball"])])
            features.append((agent.fingerprints(), agent.text.frozen(numbers)))
    assert features[0][0] != features[1][0] == features[2][0]
    assert torch.equal(features[1][1], features[2][1])
    assert not torch.allclose(features[0][1], features[1][1])
    layer = with_orthogonal_layers(load_sentence_encoder(encoder)).bert.layers[0]
    for weight in (*layer.qkv.weight.chunk(3), layer.out.weight):
        torch.testing.assert_close(weight @ weight.T, torch.eye(24), atol=1e-5, rtol=0)
    assert not layer.inner.bias.any()


def test_an_intrinsic_reward_joins_what_is_learned_from():
    class Surprise:
        metrics = ("train/surprise",)

        def __call__(self, steps):
            before, after = steps.observations.images.chunk(2)
            new = (after != before).flatten(1).any(1).float()
            return 0.5 * steps.rewards + new, {"train/surprise": new.mean()}

    with build_run(settings_of(), Ranks()) as run:
        learner = run.learner
        learner.folder = Path()
        run.collector.begin(0)
        while not learner.n_updates:
            run.collector.step()
        steps = learner.replay.sample(8)
        alone = learner.learn(steps)["train/n_step_return_mean"]
        learner.reward = Surprise()
        logged = learner.learn(steps)
        # Every frame is another.
        torch.testing.assert_close(logged["train/n_step_return_mean"], 0.5 * alone + 1)
        assert logged["train/surprise"] == 1


BAD = {
    "finetune=critic": "finetune: critic freezes all other parts",
    "guide=nowhere": "guide nowhere: no such file or folder",
    f"guide={__file__}": "test_n_step_runs.py: not a checkpoint",  # a guide of another kind
    "guide_share=0.3": "guide_share: no effect without a guide",
    'env_args={"side": 4}': "an image below 5x5",
    "tau=0.1": "tau is read by DQN, SAC and TD3, and this is EllmDQN",
    "algorithm=DQN": "model: ELLM is trained by EllmDQN",
    "model=HELM": "algorithm: EllmDQN trains values of the last frames, which HELM has",
}


@pytest.mark.parametrize("change", BAD)
def test_every_bad_input_is_refused(change, capsys):
    name, value = change.split("=", 1)
    if name in ("algorithm", "model"):  # no other setting fits then
        settings = {"algorithm": "EllmDQN", "model": "ELLM"} | {name: value}
        words = [f"--var={key}={each}" for key, each in settings.items()]
    else:
        words = words_of(TINY | {name: value})
    refused(capsys, "main", words, BAD[change])
