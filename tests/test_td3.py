"""SAC and TD3 of continuous actions: against their equations, and against stable-baselines3."""

import copy
import math

import gymnasium
import pytest
import stable_baselines3
import torch
from gymnasium.spaces import Box, flatdim
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import nn
from torch.optim import Adam

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
CHANGES = {
    "shared": {},
    "unfrozen": {"freeze_critic": False, "learn_temperature": True},
    "apart": APART | {"actor_learning_rate": 2e-3, "critic_learning_rate": 1e-3},
}
N_STEPS = 3
EPSILON = 1e-3  # Adam's own would make whole steps of what rounding leaves of gradients of 0


def built(algorithm, model, **changes):
    """Return a learner, its weights larger than fresh ones and its target's others."""
    torch.manual_seed(0)
    value = "first" if changes.get("shared_encoder", True) else "least"
    own = {"policy_delay": 2, "actor_value": value} if algorithm == "TD3" else {}
    config = small_config(algorithm=algorithm, model=model, mem_len=T, **SMALL, **(own | changes))
    agent = build_agent(config, *SPACES)
    kind = sac.SAC.of(agent) if algorithm == "SAC" else td3.TD3
    learner = kind(config, agent)
    with torch.no_grad():
        for parameter in (*agent.parameters(), *learner.target.parameters()):
            parameter.normal_(std=0.3)
    return learner


def random_sequences(seed, n_steps=T):
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw)

    actions = normal(n_steps, B, N_ACTIONS).tanh()
    is_first = torch.zeros(n_steps + 1, B, dtype=torch.bool)
    is_first[0] = True
    lengths = torch.randint(1, n_steps + 1, (B,), generator=draw)
    return SequenceBatch(
        ObservationBatch(Observations(vectors=normal((n_steps + 1) * B, N_NUMBERS))),
        is_first,
        torch.cat((torch.zeros(1, B, N_ACTIONS), actions)),
        torch.arange(n_steps + 1)[:, None].expand(-1, B),  # a GPT's places
        actions,
        normal(n_steps, B),
        (normal(n_steps, B) > 1).float(),
        (torch.arange(n_steps)[:, None] < lengths).float(),
    )


def noise(shape, largest):
    return torch.linspace(-largest, largest, math.prod(shape)).view(shape)


@pytest.fixture
def fixed_noise(monkeypatch):
    """Let the policy's noise reach 1, that of the target's actions 3: more than its clip."""
    normal = torch.distributions.normal
    monkeypatch.setattr(normal, "_standard_normal", lambda shape, **_: noise(shape, 1))
    monkeypatch.setattr(torch, "randn_like", lambda like: noise(like.shape, 3))


def plain_policy(agent, features):
    """Return actions and log-probabilities by the equations."""
    out = agent.policy(features)
    if not agent.draws_actions:
        return out.tanh(), torch.zeros(out.shape[:-1])
    mean, log_std = out.split(N_ACTIONS, -1)
    z = noise(mean.shape, 1)
    u = mean + log_std.exp() * z
    log_p = -0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi) - torch.log(1 - u.tanh() ** 2)
    return u.tanh(), log_p.sum(-1)


def plain_steps(learner, batches):
    """Take gradient steps written out; yield metrics, agent, target and temperature of each."""
    agent, target, config = copy.deepcopy((learner.agent, learner.target, learner.config))
    is_sac, shared = agent.draws_actions, config.shared_encoder
    actor = [*agent.body.parameters(), *agent.policy.parameters()]
    of_all = Adam(agent.parameters(), config.learning_rate, eps=EPSILON)
    if not shared:
        critic = [*agent.critic_body.parameters(), *agent.critics.parameters()]
        of_actor = Adam(actor, config.actor_learning_rate, eps=EPSILON)
        of_critic = Adam(critic, config.critic_learning_rate, eps=EPSILON)
    log_alpha = torch.tensor(config.temperature).log().requires_grad_()
    of_alpha = Adam([log_alpha], config.temperature_learning_rate, eps=EPSILON)

    def q(of, view, actions):
        joined = torch.cat((view, actions), -1)
        return of.critics.first(joined)[..., 0], of.critics.second(joined)[..., 0]

    def seen_by_critics(of, sequences):
        return (of.body if shared else of.critic_body).unroll(sequences)

    for number, sequences in enumerate(batches, 1):
        mask, alpha = sequences.mask, log_alpha.detach().exp() * is_sac
        agent.zero_grad()

        with torch.no_grad():
            policy = agent if is_sac else target
            actions, log_p = plain_policy(policy, policy.body.unroll(sequences)[1:])
            if not is_sac:
                clip = config.target_noise_clip
                drawn = config.target_noise * noise(actions.shape, 3)
                actions = (actions + drawn.clamp(-clip, clip)).clamp(-1, 1)
            least = torch.min(*q(target, seen_by_critics(target, sequences)[1:], actions))
            bootstrapped = (1 - sequences.terminated) * (least - alpha * log_p)
            y = sequences.rewards + config.gamma * bootstrapped
        values = q(agent, seen_by_critics(agent, sequences)[:-1], sequences.actions)
        critic_loss = sum(((each - y) ** 2 * mask).sum() / mask.sum() for each in values)
        (critic_loss / (1 + shared)).backward()
        if not shared:
            of_critic.step()
            agent.zero_grad()

        actor_loss, is_due = torch.zeros(()), number % config.policy_delay == 0
        if is_due:
            # What the policy's loss shall not change gets no gradients of it.
            is_frozen = not shared or config.freeze_critic
            agent.critics.requires_grad_(not is_frozen)
            features = agent.body.unroll(sequences)[:-1]
            view = seen_by_critics(agent, sequences)[:-1]
            if shared and is_frozen:
                features = features.detach()
            actions, log_p = plain_policy(agent, features)
            first, second = q(agent, view.detach() if is_frozen else view, actions)
            is_least = is_sac or config.actor_value == "least"
            losses = alpha * log_p - (torch.min(first, second) if is_least else first)
            actor_loss = (losses * mask).sum() / mask.sum()
            actor_loss.backward()
            agent.critics.requires_grad_(True)
        if shared:
            of_all.step()
        elif is_due:
            of_actor.step()
        told = {"critic_loss": critic_loss, "actor_loss": config.policy_delay * actor_loss}
        if is_sac:
            told["entropy"] = entropy = -(log_p.detach() * mask).sum() / mask.sum()
        if is_sac and config.learn_temperature:
            log_alpha.grad = alpha * (entropy + N_ACTIONS)  # of alpha (H + A)
            of_alpha.step()
        if is_due:
            for old, new in zip(target.parameters(), agent.parameters(), strict=True):
                old.data = (1 - config.tau) * old + config.tau * new.detach()
        yield told, agent, target, log_alpha.exp().item()


@pytest.mark.quick("LSTM-SAC-unfrozen", "LSTM-TD3-apart")
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
@pytest.mark.parametrize("model", ["LSTM", "GPT"])
def test_gradient_steps_are_those_of_the_equations(model, algorithm, kind, fixed_noise):
    learner = built(algorithm, model, **CHANGES[kind])
    for optimizer in learner.optimizers.values():
        optimizer.param_groups[0]["eps"] = EPSILON
    batches = [random_sequences(seed) for seed in range(N_STEPS)]
    plain = plain_steps(learner, batches)
    for sequences, (told, agent, target, alpha) in zip(batches, plain, strict=True):
        logged = learner.learn(sequences)
        for name, value in told.items():
            torch.testing.assert_close(logged[f"train/{name}"], value, atol=1e-6, rtol=1e-5)
        for ours, theirs in ((learner.agent, agent), (learner.target, target)):
            for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
        if algorithm == "SAC":
            assert float(learner.temperature) == pytest.approx(alpha, rel=1e-6)


def parameters_of_both(learner, model):
    """Yield the parameters of our networks, each beside that of stable-baselines3."""
    for ours, end in ((learner.agent, ""), (learner.target, "_target")):
        critic = [*ours.critic_body.parameters(), *ours.critics.parameters()]
        yield from zip(critic, getattr(model, f"critic{end}").parameters(), strict=True)
        actor = [*ours.body.parameters(), *ours.policy.parameters()]
        if ours.draws_actions:
            *actor, weight, bias = actor
            for rows in (slice(N_ACTIONS), slice(N_ACTIONS, None)):  # of mean and log_std
                actor += weight[rows], bias[rows]
        if not (end and ours.draws_actions):  # SAC's target has no policy
            yield from zip(actor, getattr(model, f"actor{end}").parameters(), strict=True)


def embedder(space, width):
    layers = nn.Sequential(nn.Linear(flatdim(space), width), nn.ReLU())
    layers.features_dim = width
    return layers


def theirs_of(config, env, **settings):
    """Return stable-baselines3's SAC or TD3 with the networks and settings of ours."""
    model = getattr(stable_baselines3, config.algorithm)(
        "MlpPolicy",
        env,
        **{name: getattr(config, name) for name in ("learning_rate", "gamma", "tau")},
        policy_kwargs={
            "features_extractor_class": embedder,
            "features_extractor_kwargs": {"width": config.observation_embedding},
            "share_features_extractor": False,
            "net_arch": [config.head_width, config.head_width],
        },
        **settings,
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"), [("SAC", {"ent_coef": 0.1}), ("TD3", {"policy_delay": 2})]
)
def test_without_memory_steps_are_those_of_stable_baselines3(
    algorithm, settings, fixed_noise, monkeypatch
):
    own = {"actor_value": "first"} if algorithm == "TD3" else {}
    learner = built(algorithm, "CNN", action_embedding=0, learning_rate=3e-4, **APART, **own)
    env = gymnasium.Env()
    env.observation_space, env.action_space = SPACES
    model = theirs_of(learner.config, env, **settings)
    for own, theirs in parameters_of_both(learner, model):
        theirs.data.copy_(own)
    monkeypatch.setattr(torch.Tensor, "normal_", lambda it, _, std: std * noise(it.shape, 3))
    for seed in range(N_STEPS):
        sequences = random_sequences(seed, n_steps=1)
        shown = sequences.observations.stored.vectors.view(2, B, N_NUMBERS)
        rewards, ends = sequences.rewards[0][:, None], sequences.terminated[0][:, None]
        data = ReplayBufferSamples(shown[0], sequences.actions[0], shown[1], ends, rewards)
        monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, data=data, **__: data)
        model.train(gradient_steps=1)
        loss = model.logger.name_to_value["train/critic_loss"]
        halved = 2 if algorithm == "SAC" else 1  # theirs is half the sum
        found = learner.learn(sequences)["train/critic_loss"].item()
        assert found == pytest.approx(halved * loss, rel=1e-5)
        for own, theirs in parameters_of_both(learner, model):
            torch.testing.assert_close(own, theirs, atol=1e-5, rtol=1e-5)


def first_percept(n_envs):
    shown = Observations(vectors=torch.zeros(n_envs, N_NUMBERS))
    return AgentInput.first(shown, (N_ACTIONS,))


def test_td3_explores_by_noise_on_every_number_within_the_bounds(fixed_noise):
    learner, percept = built("TD3", "CNN", exploration_noise=0.5), first_percept(4)
    plain = learner.agent.act(percept, learner.agent.initial_memory(4))
    expected = plain.actions + 0.5 * noise((4, N_ACTIONS), 3)
    assert expected.abs().max() > 1
    torch.testing.assert_close(learner.explore(plain, percept).actions, expected.clamp(-1, 1))


def test_a_td3_policy_that_has_diverged_is_told():
    learner = built("TD3", "CNN")
    with torch.no_grad():
        learner.agent.policy[-1].bias.fill_(torch.nan)
    with pytest.raises(RunError, match="no action can be drawn"):
        learner.agent.act(first_percept(1), learner.agent.initial_memory(1))
