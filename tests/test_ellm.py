"""ELLM and EllmDQN against the original: features, values, targets, gradients, parameters."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text

from models.caching import to_float01
from models.ellm import Ellm
from models.observations import AgentInput, Observations, SentenceTable, SentenceVectors
from tests import golden_data
from tests.agents import assert_precisions
from trainers import ellm_dqn
from trainers.ellm_dqn import EllmDQN
from trainers.frame_replay import FrameSteps
from trainers.losses import double_q_targets, n_step_returns
from utils.given_settings import load_config

OUR_NAMES = {
    **{f"image.conv{n}.": f"image.convolutions.{2 * n}." for n in range(3)},
    **{f"value.{n}.": f"head.value.{2 * n}." for n in range(3)},
    **{f"advantage.{n}.": f"head.advantage.{2 * n}." for n in range(3)},
}


class TokenSums(SentenceVectors):
    """Sentences that are token ids, and the sums of their given vectors."""

    def __init__(self, table, vectors):
        super().__init__(table, lambda text: vectors[[int(i) for i in text.split()]].sum(0))
        self.table, self.width = table, vectors.shape[1]

    def fingerprints(self):
        return {}


@pytest.fixture(scope="module")
def arrays():
    return golden_data.load("ellm/dqn")


def our_name(name):
    for theirs, ours in OUR_NAMES.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def renamed(arrays, prefix):
    return {our_name(name): value for name, value in golden_data.under(arrays, prefix).items()}


def config_of(arrays, **changes):
    names = {"learning_rate": "lr", "target_update_steps": "target_every"}
    names |= {"train_frequency": "update_every"}
    given = {name: arrays[f"settings_{theirs}"].item() for name, theirs in names.items()}
    given |= {"hidden_dim": len(arrays["before.trunk.weight"])}
    given |= {"n_step": 1, "gamma": 1.0, "clip_reward": False}
    config = load_config(None, ["model=ELLM", "algorithm=EllmDQN"])
    return config.replace(device="cpu", **(given | changes))


def agent_of(arrays, image=True, n_texts=1, prefix="before."):
    """Return an agent with the original's parameters."""
    kinds = {"image": Box(0, 255, (1, 84, 84), np.uint8)} if image else {}
    kinds |= {f"text{n}": Text(1000) for n in range(n_texts)}
    n_actions = arrays["q"].shape[-1]
    space = Dict(kinds)
    frozen = TokenSums(SentenceTable(), arrays["token_vectors"])
    agent = Ellm(config_of(arrays), space, Discrete(n_actions), frozen)
    agent.reader.sentences = frozen.table
    state = {k: v for k, v in renamed(arrays, prefix).items() if k in agent.state_dict()}
    if not n_texts:
        state |= golden_data.under(arrays, "image_only.")
    agent.load_state_dict(state)
    return agent


def told(agent, *ids):
    """Return numbers of sentences [B, K] that are ids [B, L] each, without their padding."""
    texts = [[" ".join(str(i) for i in row if i) for row in each.tolist()] for each in ids]
    return torch.tensor([agent.reader.sentences.numbers(each) for each in texts]).T.contiguous()


def assert_near(ours, theirs, **bounds):
    torch.testing.assert_close(ours, theirs, **({"atol": 1e-5, "rtol": 0} | bounds))


def test_branches_features_and_values_are_the_originals(arrays):
    agent = agent_of(arrays)
    seen = Observations(arrays["image"][0], text=told(agent, arrays["text"][0]))
    assert_near(agent.image.of_pixels(to_float01(seen.images)), arrays["image_features"][0])
    assert_near(agent.text(seen.text), arrays["text_features"][0])
    assert_near(agent.features(seen), arrays["features"][0])
    assert_near(agent.head(agent.features(seen)), arrays["q"][0])


@pytest.mark.parametrize("branches", ["q_state_and_goal", "q_goal_only", "q_image_only"])
def test_other_arrangements_of_the_branches_are_the_originals(branches, arrays):
    state, goal = (arrays["text"][0],), (arrays["goal"],)
    texts = {"q_state_and_goal": state + goal, "q_goal_only": goal, "q_image_only": ()}[branches]
    agent = agent_of(arrays, n_texts=len(texts))
    seen = Observations(arrays["image"][0], text=told(agent, *texts) if texts else None)
    assert_near(agent.head(agent.features(seen)), arrays[branches])


def steps_of(arrays, update, agent):
    """Return the original's batch, as if from replay."""
    rewards, discounts = arrays["reward"][update], arrays["discount"][update]
    return FrameSteps(
        Observations(arrays["image"][update], text=told(agent, arrays["text"][update])),
        Observations(arrays["next_image"][update], text=told(agent, arrays["next_text"][update])),
        arrays["action"][update],
        rewards[:, None],
        discounts[:, None],  # a discount in the place of a yes or no
    )


def test_three_updates_are_the_originals(arrays):
    learner = EllmDQN(config_of(arrays), agent_of(arrays))
    target = renamed(arrays, "target_before.")
    learner.target.load_state_dict(golden_data.under(target, "head."))
    parameters = dict(learner.agent.named_parameters())
    for update, step in enumerate(arrays["settings_steps"].tolist()):
        steps = steps_of(arrays, update, learner.agent)
        following = learner.agent.features(steps.following)
        online, target = learner.agent.head(following), learner.target(following)
        assert_near(online, arrays["next_q_online"][update])
        assert_near(target, arrays["next_q_target"][update])
        assert torch.equal(online.argmax(-1), arrays["next_action"][update])
        paid, gamma = steps.rewards, learner.config.gamma
        returns, discounts = n_step_returns(paid, steps.not_done, gamma, torch.float16)
        assert_near(double_q_targets(returns, discounts, online, target), arrays["target"][update])
        logged = learner.learn(steps)
        for name, ours in (("loss", "critic_loss"), ("gradient_norm", "grad_norm")):
            assert_near(logged[f"train/{ours}"], arrays[name][update], atol=0, rtol=1e-5)
        for name, norms in golden_data.under(arrays, "gradient_norm.").items():
            assert_near(parameters[our_name(name)].grad.norm(), norms[update], atol=1e-8, rtol=2e-5)
        if step % learner.config.target_update_steps == 0:
            learner.target.load_state_dict(learner.agent.head.state_dict())
        if update in (0, 2):
            for name, value in renamed(arrays, f"after_{update + 1}.").items():
                assert_near(parameters[name], value, atol=2e-5)
    for name, value in renamed(arrays, "target_after_3.").items():
        assert_near(learner.target.state_dict()[name.removeprefix("head.")], value, atol=2e-5)


def test_epsilon_falls_as_the_originals(arrays):
    cases, agent = golden_data.load("ellm/epsilon"), agent_of(arrays)
    for n, expected in enumerate(cases["epsilon"].tolist()):
        names = {"epsilon_start": "max", "epsilon_final": "min", "epsilon_steps": "decay_steps"}
        given = {name: cases[theirs][n].item() for name, theirs in names.items()}
        learner = EllmDQN(config_of(arrays, wait_for_reward=True, **given), agent)
        learner.first_reward_step = cases["started_at"][n].item()
        assert learner.epsilon_at(cases["step"][n].item()) == pytest.approx(expected, abs=1e-12)


def test_the_frames_an_agent_remembers_are_the_originals_stack(arrays):
    episode = golden_data.load("ellm/pipeline")
    agent = agent_of(arrays, n_texts=0)
    memory = agent.initial_memory(2)  # the second begins its episode three steps later
    for step, (frame, stack) in enumerate(
        zip(episode["frame_gray"], episode["stacked"], strict=True)
    ):
        is_first = torch.tensor([bool(episode["first"][step]), step == 3])
        seen, zeros = Observations(frame.expand(2, -1, -1, -1)), torch.zeros(2)
        percept = AgentInput(seen, is_first, zeros.long(), zeros)
        before, kept = memory.copy(), memory.state.clone()
        acted = agent.act(percept, memory)
        values = agent.inspect(percept, before, acted)["action_values"]
        assert torch.equal(before.state, kept)
        assert acted.actions.tolist() == values.argmax(-1).tolist()
        assert torch.equal(memory.state[0], stack)
        if step == 3:
            assert (memory.state[1] == frame).all()


@pytest.mark.slow
def test_updates_in_float32_are_unchanged_and_in_bfloat16_train(arrays, monkeypatch):
    def built(**changes):
        learner = EllmDQN(config_of(arrays, learning_rate=1e-3, **changes), agent_of(arrays))
        return learner, steps_of(arrays, 0, learner.agent)

    assert_precisions(built, ellm_dqn, monkeypatch)
