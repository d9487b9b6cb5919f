"""SAC and TD3 of continuous actions: against their equations, and against stable-baselines3."""

import copy

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn

from models import build_agent
from models.agent import SequenceBatch
from models.observations import AgentInput, ObservationBatch, Observations
from tests.agents import small_config
from trainers import sac, td3
from utils.errors import RunError

N_NUMBERS, N_ACTIONS, B, T = 3, 2, 32, 5
SPACES = Box(-1, 1, (N_NUMBERS,)), Box(-1, 1, (N_ACTIONS,))
SMALL = {"observation_embedding": 6, "head_width": 16, "memory_width": 8, "memory_heads": 2}
APART = {"shared_encoder": False}


def built(algorithm, model, **changes):
    """Return a learner, its weights larger than fresh ones and its target's others."""
    torch.manual_seed(0)
    config = small_config(algorithm=algorithm, model=model, **(SMALL | {"mem_len": T} | changes))
    agent = build_agent(config, *SPACES)
    kind = sac.SAC.of(agent) if algorithm == "SAC" else td3.TD3
    learner = kind(config, agent)
    with torch.no_grad():
        for parameter in (*agent.parameters(), *learner.target.parameters()):
            parameter.normal_(std=0.3)
    return learner


def random_sequences(n_steps=T, seed=1):
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw)

    actions = normal(n_steps, B, N_ACTIONS).tanh()
    is_first = torch.zeros(n_steps + 1, B, dtype=torch.bool)
    is_first[0] = True
    mask = (
        torch.arange(n_steps)[:, None] < torch.randint(1, n_steps + 1, (B,), generator=draw)
    ) * 1.0
    return SequenceBatch(
        ObservationBatch(Observations(vectors=normal((n_steps + 1) * B, N_NUMBERS))),
        is_first,
        torch.cat((torch.zeros(1, B, N_ACTIONS), actions)),
        torch.zeros(n_steps + 1, B, 0),
        actions,
        normal(n_steps, B),
        (normal(n_steps, B) > 1).float(),
        mask,
    )


@pytest.fixture
def fixed_noise(monkeypatch):
    """Let every draw of a normal number be 0.3: for the policy and for the target's noise."""
    monkeypatch.setattr(
        torch.distributions.normal,
        "_standard_normal",
        lambda shape, dtype, device: torch.full(shape, 0.3, dtype=dtype, device=device),
    )
    monkeypatch.setattr(torch, "randn_like", lambda like: torch.full_like(like, 0.3))


def plain_policy(agent, features):
    """Return actions and log-probabilities by the equations, for noise of 0.3."""
    out = agent.policy(features)
    if not agent.draws_actions:
        return out.tanh(), torch.zeros(out.shape[:-1])
    mean, log_std = out[..., :N_ACTIONS], out[..., N_ACTIONS:]
    u = mean + log_std.exp() * 0.3
    log_p = -0.5 * 0.3**2 - log_std - 0.5 * np.log(2 * np.pi) - torch.log(1 - u.tanh() ** 2)
    return u.tanh(), log_p.sum(-1)


def plain_step(learner, sequences):
    """Take a gradient step written out, with plain Adam; return critic and policy losses."""
    agent, target, config = learner.agent, learner.target, learner.config
    is_sac, shared, mask = agent.draws_actions, agent.critic_body is None, sequences.mask

    def mean(values):
        return (values * mask).sum() / mask.sum()

    def q(of, view, actions):
        joined = torch.cat((view, actions), -1)
        return of.critics.first(joined)[..., 0], of.critics.second(joined)[..., 0]

    features = agent.body.unroll(sequences)
    view = features if shared else agent.critic_body.unroll(sequences)
    with torch.no_grad():
        if is_sac:
            actions, log_p = plain_policy(agent, features[1:])
        else:
            actions, log_p = plain_policy(target, target.body.unroll(sequences)[1:])
            noise = torch.tensor(0.3 * config.target_noise).clamp(max=config.target_noise_clip)
            actions = (actions + noise).clamp(-1, 1)
        seen = (target.body if shared else target.critic_body).unroll(sequences)[1:]
        least = torch.min(*q(target, seen, actions))
        soft = least - is_sac * config.temperature * log_p
        y = sequences.rewards + config.gamma * (1 - sequences.terminated) * soft
    critic_loss = sum(mean((each - y) ** 2) for each in q(agent, view[:-1], sequences.actions))

    groups = {"critic": [*agent.critics.parameters()], "actor": [*agent.policy.parameters()]}
    groups["actor"] += [*agent.body.parameters()]
    if not shared:
        groups["critic"] += [*agent.critic_body.parameters()]
    rate = config.learning_rate

    def adam(parameters, gradients):
        # The first step of Adam: m / (sqrt(v) + eps) is g / (|g| + eps).
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter -= rate * gradient / (gradient.abs() + 1e-8)

    def policy_loss(seen):
        inputs = features.detach() if shared and config.freeze_critic else features
        actions, log_p = plain_policy(agent, inputs[:-1])
        first, second = q(agent, seen[:-1], actions)
        if is_sac:
            return mean(config.temperature * log_p - torch.min(first, second))
        return mean(-first)

    if shared:
        everything = [*groups["critic"], *groups["actor"]]
        gradients = torch.autograd.grad(
            0.5 * critic_loss, everything, retain_graph=True, allow_unused=True
        )
        actor = policy_loss(features.detach() if config.freeze_critic else features)
        wanted = groups["actor"] if config.freeze_critic else everything
        more = torch.autograd.grad(actor, wanted, allow_unused=True)
        summed = dict(zip(map(id, everything), gradients, strict=True))
        for parameter, gradient in zip(wanted, more, strict=True):
            if gradient is not None:
                before = summed[id(parameter)]
                summed[id(parameter)] = gradient if before is None else before + gradient
        adam(everything, [summed[id(each)] for each in everything])
    else:
        adam(groups["critic"], torch.autograd.grad(critic_loss, groups["critic"]))
        with torch.no_grad():
            view = agent.critic_body.unroll(sequences)
        actor = policy_loss(view)
        adam(groups["actor"], torch.autograd.grad(actor, groups["actor"]))
    with torch.no_grad():
        for old, new in zip(target.parameters(), agent.parameters(), strict=True):
            old += config.tau * (new - old)
    return critic_loss.item(), actor.item()


@pytest.mark.quick("LSTM-SAC-changes0", "LSTM-TD3-changes2")
@pytest.mark.parametrize("changes", [{}, {"freeze_critic": False}, APART])
@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
@pytest.mark.parametrize("model", ["LSTM", "GPT"])
def test_a_gradient_step_is_that_of_the_equations(model, algorithm, changes, fixed_noise):
    learner, sequences = built(algorithm, model, **changes), random_sequences()
    learner.agent.eval(), learner.target.eval()
    plain = copy.copy(learner)
    plain.agent, plain.target = copy.deepcopy(learner.agent), copy.deepcopy(learner.target)
    expected = plain_step(plain, sequences)
    logged = learner.learn(sequences)
    found = [logged[f"train/{name}_loss"].item() for name in ("critic", "actor")]
    assert found == pytest.approx(expected, rel=1e-5)
    for ours, theirs in ((learner.agent, plain.agent), (learner.target, plain.target)):
        for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5, msg=name)


def theirs_of(learner, algorithm):
    """Return stable-baselines3's learner with the same weights."""
    baselines = pytest.importorskip("stable_baselines3")
    from gymnasium.envs.classic_control import PendulumEnv
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Shown(PendulumEnv):
        def __init__(self):
            super().__init__()
            self.observation_space, self.action_space = SPACES

    class Embedded(BaseFeaturesExtractor):
        def __init__(self, space, width=6):
            super().__init__(space, width)
            self.linear = nn.Linear(space.shape[0], width)

        def forward(self, shown):
            return self.linear(shown).relu()

    config = learner.config
    more = {"ent_coef": config.temperature} if algorithm == "SAC" else {"policy_delay": 1}
    model = getattr(baselines, algorithm)(
        "MlpPolicy",
        DummyVecEnv([Shown]),
        learning_rate=config.learning_rate,
        gamma=config.gamma,
        tau=config.tau,
        batch_size=B,
        policy_kwargs={
            "features_extractor_class": Embedded,
            "net_arch": [16, 16],
            "share_features_extractor": False,
        },
        **more,
    )

    def copied(to, body, layers, heads):
        to.features_extractor.linear.load_state_dict(body.embedder.vectors.state_dict())
        for network, own in zip(layers, heads, strict=True):
            linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
            for one, other in zip(
                linear, [m for m in own if isinstance(m, nn.Linear)], strict=False
            ):
                one.load_state_dict(other.state_dict())

    for ours, ends in ((learner.agent, ""), (learner.target, "_target")):
        critic = getattr(model, f"critic{ends}")
        copied(
            critic, ours.critic_body, critic.q_networks, (ours.critics.first, ours.critics.second)
        )
        actor = getattr(model, f"actor{ends}", None)
        if actor is None:
            continue
        if algorithm == "TD3":
            copied(actor, ours.body, [actor.mu], [ours.policy])
        else:
            copied(actor, ours.body, [actor.latent_pi], [ours.policy])
            last = ours.policy[-1]
            for rows, own in ((slice(2), actor.mu), (slice(2, 4), actor.log_std)):
                own.weight.data.copy_(last.weight[rows])
                own.bias.data.copy_(last.bias[rows])
    return model


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_without_memory_a_step_is_stable_baselines3s(algorithm, fixed_noise, monkeypatch):
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    learner = built(algorithm, "CNN", action_embedding=0, learning_rate=3e-4, **APART)
    model = theirs_of(learner, algorithm)
    sequences = random_sequences(n_steps=1)
    shown = sequences.observations.stored.vectors.view(2, B, N_NUMBERS)
    data = ReplayBufferSamples(
        shown[0],
        sequences.actions[0],
        shown[1],
        sequences.terminated[0][:, None],
        sequences.rewards[0][:, None],
    )
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, **__: data)
    monkeypatch.setattr(torch.Tensor, "normal_", lambda self, *_: self.fill_(0.3 * 0.2))
    model.set_logger(configure(None, []))
    logged = learner.learn(sequences)
    model.train(gradient_steps=1, batch_size=B)
    sums = 2 if algorithm == "SAC" else 1  # its loss is half the sum
    theirs = model.logger.name_to_value
    assert logged["train/critic_loss"].item() == pytest.approx(
        sums * theirs["train/critic_loss"], rel=1e-5
    )
    assert logged["train/actor_loss"].item() == pytest.approx(
        theirs["train/actor_loss"], rel=1e-5, abs=1e-5
    )
    for ours, ends in ((learner.agent, ""), (learner.target, "_target")):
        critic = getattr(model, f"critic{ends}")
        for network, own in zip(
            critic.q_networks, (ours.critics.first, ours.critics.second), strict=True
        ):
            for one, other in zip(network.parameters(), own.parameters(), strict=True):
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    policy = model.actor.mu if algorithm == "TD3" else model.actor.latent_pi
    for one, other in zip(policy.parameters(), learner.agent.policy.parameters(), strict=False):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_policy_delay_leaves_policy_and_copy_alone_between_its_steps():
    learner = built("TD3", "LSTM", policy_delay=2, **APART)

    def weights():
        watched = (*learner.agent.policy.parameters(), *learner.target.parameters())
        return torch.cat([each.detach().flatten() for each in watched])

    before = weights()
    learner.learn(random_sequences())
    assert torch.equal(before, weights())
    learner.learn(random_sequences())
    assert not torch.equal(before, weights())


def test_a_learned_temperature_keeps_the_entropy_at_minus_the_number_of_actions():
    learner = built("SAC", "CNN", learn_temperature=True, temperature=0.1)
    assert float(learner.temperature) == pytest.approx(0.1)
    entropy = learner.learn(random_sequences())["train/entropy"].item()
    assert (float(learner.temperature) > 0.1) == (entropy < -N_ACTIONS)


def test_a_td3_policy_that_has_diverged_is_told():
    learner = built("TD3", "CNN")
    with torch.no_grad():
        learner.agent.policy[-1].bias.fill_(torch.nan)
    percept = AgentInput.first(Observations(vectors=torch.zeros(1, N_NUMBERS)), (N_ACTIONS,))
    with pytest.raises(RunError, match="no action can be drawn"):
        learner.agent.act(percept, learner.agent.initial_memory(1))
