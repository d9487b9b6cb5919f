"""DQN and SAC against the original: forward passes, gradients and parameters after updates."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from models import build_agent, q_networks
from models.agent import SequenceBatch
from models.memories import Gpt, Lstm
from models.observations import AgentInput, ObservationBatch, ObservationPreprocessor, Observations
from models.q_networks import InputEmbedder, QAgent, RecurrentTorso, SacAgent, TwinQ, uniform_mlp
from tests import golden_data
from tests.agents import assert_precisions, small_config
from trainers import dqn
from trainers.dqn import DQN
from trainers.sac import SAC

SHARED = (
    "sacd_shared_lstm_cnn",
    "sacd_shared_gpt_cnn",
    "sacd_shared_lstm_cnn_unfrozen",
    "sacd_shared_lstm_cnn_temperature",
)
SEPARATE = "sacd_separate_lstm_cnn"
NAMES = ("dqn_lstm", "dqn_gpt", *SHARED, SEPARATE)
OUR_NAMES = (  # of a body's parts, and of heads
    ("observ_embedder.fc.", "embedder.vectors."),
    ("observ_embedder.cnn.", "embedder.images.convolutions."),
    ("observ_embedder.linear.", "embedder.images.linear."),
    ("action_embedder.fc.", "embedder.actions."),
    ("seq_model.model.", "memory.lstm."),
    ("seq_model.transformer.h.", "memory.blocks."),
    ("seq_model.transformer.ln_f.", "memory.norm."),
    (".ln_1.", ".attention_norm."),
    (".ln_2.", ".feed_forward_norm."),
    (".attn.c_attn.", ".qkv."),
    (".attn.c_proj.", ".out."),
    (".mlp.c_fc.", ".inner."),
    (".mlp.c_proj.", ".outer."),
    (".fc0.", ".0."),
    (".fc1.", ".2."),
    (".last_fc.", ".4."),
)
LOGS = {name: name for name in ("critic_loss", "actor_loss", "entropy")}
LOGS |= {"q": "q_mean", "q1": "q1_mean", "q2": "q2_mean", "coef": "temperature"}
TRANSPOSED = (".qkv.", ".out.", ".inner.", ".outer.")  # theirs are [in, out]


def load(name):
    return golden_data.load(f"memory_rl/update_{name}")


def settings(arrays):
    return {
        key: value.tolist() if value.ndim else value.item()
        for key, value in golden_data.under(arrays, "config.").items()
    }


def renamed(arrays, prefix, is_shared):
    """Return agent's and target's parameters of one moment under our names."""
    online, target = {}, {}
    for name, value in golden_data.under(arrays, prefix).items():
        for theirs, ours in OUR_NAMES:
            name = name.replace(theirs, ours)
        if getattr(value, "ndim", 0) == 2 and any(part in name for part in TRANSPOSED):
            value = value.T
        is_target = "_target." in name
        ours = placed(name.replace("_target", ""), is_shared, is_target)
        (target if is_target else online)[ours] = value
    return online, target


def placed(name, is_shared, is_target):
    """Return where in our agent or target a parameter stands."""
    owner, _, rest = name.partition(".")
    if owner in ("critic", "actor"):
        owner, _, rest = rest.partition(".")
        in_critic = name.startswith("critic.") and not is_shared
    else:
        in_critic = False
    heads = {"qf": "head.", "qf1": "critics.first.", "qf2": "critics.second.", "policy": "policy."}
    if owner in heads:
        return heads[owner] + rest
    body = "critic_body." if in_critic and is_shared is not None else "body."
    return ("body." if is_target else body) + f"{owner}.{rest}"


def config_of(name, given):
    ours = {"tau": "tau", "critic_lr": "learning_rate", "hidden_size": "memory_width"}
    ours |= {"n_layer": "memory_layers", "n_head": "memory_heads", "alpha": "temperature"}
    ours |= {"actor_lr": "actor_learning_rate"}  # read without a shared encoder alone
    ours |= {
        "target_entropy_ratio": "target_entropy",
        "temperature_lr": "temperature_learning_rate",
    }
    ours |= {key: key for key in ("gamma", "observation_embedding", "action_embedding")}
    changes = {ours[key]: value for key, value in given.items() if key in ours}
    return small_config(
        algorithm="DQN" if name.startswith("dqn") else "SAC",
        model="GPT" if "gpt" in name else "LSTM",
        memory_dropout=0.0,
        mem_len=given["max_seq_length"] - 1,
        shared_encoder=bool(given["shared_encoder"]),
        freeze_critic=bool(given["freeze_critic"]),
        learn_temperature="target_entropy_ratio" in given,
        **changes,
    )


def spaces_of(arrays):
    given, width = settings(arrays), arrays["batch.observations"].shape[-1]
    shape = given.get("image_shape")
    shown = Box(0, 255, tuple(shape), np.uint8) if shape else Box(-1, 1, (width,), np.float32)
    return shown, Discrete(given["n_actions"])


def learner_of(name, arrays):
    """Return a learner with the original's parameters, target included."""
    given = settings(arrays)
    config, (space, actions) = config_of(name, given), spaces_of(arrays)
    n_actions = actions.n
    reader = ObservationPreprocessor(space)

    def body():
        embedder = InputEmbedder(reader, n_actions, config)
        memory = {"LSTM": Lstm, "GPT": Gpt}[config.model](embedder.width, config)
        return RecurrentTorso(embedder, memory)

    actor_body = body()
    q_heads = [
        uniform_mlp(actor_body.width, tuple(given["critic_hidden"]), n_actions, 1) for _ in range(2)
    ]
    if name.startswith("dqn"):
        learner = DQN(config, QAgent(reader, actor_body, n_actions, q_heads[0]))
    else:
        policy = uniform_mlp(actor_body.width, tuple(given["actor_hidden"]), n_actions, 1)
        critic_body = None if config.shared_encoder else body()
        learner = SAC(
            config, SacAgent(reader, actor_body, n_actions, policy, TwinQ(*q_heads), critic_body)
        )
    online, target = parameters(name, arrays, "before.")
    learner.agent.load_state_dict(online)
    learner.target.load_state_dict(target)
    return learner


def parameters(name, arrays, prefix):
    return renamed(arrays, prefix, None if name.startswith("dqn") else name in SHARED)


def observations(seen, given):
    """Return observations [..., F] as a batch of all of them."""
    flat = seen.flatten(0, -2)
    if "image_shape" in given:
        return Observations(images=flat.unflatten(-1, given["image_shape"]))
    return Observations(vectors=flat)


def sequences_of(arrays):
    batch, given = golden_data.under(arrays, "batch."), settings(arrays)
    n_steps, n_sequences = batch["actions"].shape
    is_first = torch.zeros(n_steps + 1, n_sequences, dtype=torch.bool)
    is_first[0] = True
    return SequenceBatch(
        ObservationBatch(observations(batch["observations"], given)),
        is_first,
        torch.cat((torch.zeros(1, n_sequences, dtype=torch.int64), batch["actions"])),
        torch.arange(n_steps + 1)[:, None].expand(-1, n_sequences),  # a GPT's places
        batch["actions"],
        batch["rewards"],
        batch["dones"],
        batch["masks"],
    )


def assert_near(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected.to(found.dtype), atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_parameters_and_logs_of_three_updates_are_the_originals(name):
    arrays = load(name)
    learner, sequences = learner_of(name, arrays), sequences_of(arrays)
    gradients, _ = parameters(name, arrays, "gradient.")
    log = golden_data.under(arrays, "log.")
    for number in (1, 2, 3):
        logged = learner.learn(sequences)
        for theirs in LOGS.keys() & log.keys():
            assert_near(logged[f"train/{LOGS[theirs]}"], log[theirs][number - 1], 2e-5)
        if name != SEPARATE:  # there the original reads them after the policy's backward pass
            norm = log["critic_grad_norm"][number - 1]
            assert_near(logged["train/critic_grad_norm"], norm, 2e-5)
        if number == 1:
            found = {n: p.grad for n, p in learner.agent.named_parameters()}
            assert found.keys() == gradients.keys()
            for key, gradient in gradients.items():
                assert_near(found[key], gradient, 2e-5)
        if number == 2:
            continue
        online, target = parameters(name, arrays, f"after{number}.")
        assert_same_parameters(dict(learner.agent.state_dict()), online)
        assert_same_parameters(dict(learner.target.state_dict()), target)


def assert_same_parameters(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        ours = found[name]
        if name.endswith("qkv.bias"):  # the keys' bias has no gradient but rounding
            third = len(value) // 3
            kept = torch.ones(len(value), dtype=torch.bool)
            kept[third : 2 * third] = False
            ours, value = ours[kept], value[kept]
        assert_near(ours, value, 2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_acting_step_by_step_is_the_originals(name):
    arrays = load(name)
    learner, given = learner_of(name, arrays), settings(arrays)
    acting = golden_data.under(arrays, "acting.")
    agent = learner.agent.eval()
    memory = agent.initial_memory(1)
    last = torch.zeros(1, dtype=torch.int64)
    for t, seen in enumerate(acting["observations"]):
        is_first = torch.tensor([t == 0])
        percept = AgentInput(observations(seen[None, None], given), is_first, last, torch.zeros(1))
        features = agent.body.step(percept, memory).features
        assert_near(features[0], acting["step_hidden"][t])
        if name.startswith("dqn"):
            assert_near(agent.head(features)[0], acting["step_q"][t])
            best = agent.head(features).argmax(-1)
        else:
            probabilities = agent.policy(features).softmax(-1)
            assert_near(probabilities[0], acting["step_probabilities"][t])
            best = probabilities.argmax(-1)
        assert best.item() == acting["step_greedy_actions"][t]
        if t < len(acting["actions"]):
            last = acting["actions"][t][None]


PUBLISHED_LSTM = {"observation_embedding": 32, "action_embedding": 16, "memory_width": 128}
PUBLISHED_GPT = {"observation_embedding": 64, "action_embedding": 64, "memory_width": 128}
PUBLISHED_LSTM_CNN = {"observation_embedding": 100, "action_embedding": 0, "memory_width": 128}
PUBLISHED_GPT_CNN = PUBLISHED_LSTM_CNN | {"memory_width": 100}
PUBLISHED = {
    "dqn_lstm": ("DQN", "LSTM", PUBLISHED_LSTM),
    "dqn_gpt": ("DQN", "GPT", PUBLISHED_GPT | {"memory_heads": 1}),
    "sacd_shared_lstm_cnn": ("SAC", "LSTM", PUBLISHED_LSTM_CNN),
    "sacd_shared_gpt_cnn": ("SAC", "GPT", PUBLISHED_GPT_CNN | {"memory_heads": 1}),
    "sacd_separate_lstm_cnn": ("SAC", "LSTM", PUBLISHED_LSTM_CNN | {"shared_encoder": False}),
}
N_SEEDS = 4  # as many as the original's numbers come from


def fresh_learner(name, seed, spaces=None, **changes):
    """Return a learner of published sizes, for the published tasks or other spaces."""
    algorithm, model, sizes = PUBLISHED[name]
    config = small_config(algorithm=algorithm, model=model, mem_len=51, **sizes | changes)
    shown = Box(0, 255, (3, 5, 5), np.uint8) if "cnn" in name else Box(-1, 1, (2,), np.float32)
    torch.manual_seed(seed)
    agent = build_agent(config, *(spaces or (shown, Discrete(4))))
    return (DQN if algorithm == "DQN" else SAC)(config, agent)


def fresh_parameters(name, seed):
    """Return a learner's initial parameters: the agent's and the target's."""
    learner = fresh_learner(name, seed)
    return dict(learner.agent.named_parameters()), dict(learner.target.named_parameters())


def under_our_names(name, values):
    """Return one number or text a parameter, for the agent and for the target."""
    arrays = golden_data.under(golden_data.load("memory_rl/initial_parameters"), f"{name}.")
    listed = zip(arrays["names"].tolist(), arrays[values].tolist(), strict=True)
    return parameters(name, {f"x.{key}": value for key, value in listed}, "x.")


@pytest.mark.parametrize("name", PUBLISHED)
def test_fresh_networks_have_the_originals_parameters_and_targets_begin_as_copies(name):
    online, target = fresh_parameters(name, seed=0)
    for found, shapes in zip((online, target), under_our_names(name, "shapes"), strict=True):
        assert found.keys() == shapes.keys()
        for key, shape in shapes.items():
            theirs = [int(size) for size in shape.split("x")]
            is_transposed = any(part in f".{key}" for part in TRANSPOSED)
            assert list(found[key].shape) == (theirs[::-1] if is_transposed else theirs)
    for key, value in target.items():
        in_critic = "critic_" + key
        assert torch.equal(value, online[in_critic if in_critic in online else key]), key


@pytest.mark.parametrize("name", PUBLISHED)
def test_fresh_networks_are_drawn_as_the_originals(name):
    seeds = [fresh_parameters(name, seed)[0] for seed in range(N_SEEDS)]
    theirs = {
        what: under_our_names(name, what)[0]
        for what in ("minimum", "maximum", "mean", "standard_deviation", "orthonormal_error")
    }
    for key in seeds[0]:
        ours = torch.stack([seed[key].detach() for seed in seeds]).flatten(1)
        low, high, mean, spread, error = (part[key] for part in theirs.values())
        if low == high:
            assert (ours == low).all(), key
            continue
        # Means of uniform, normal and orthogonal numbers: within five of their own spreads.
        share = 5 / ours.numel() ** 0.5
        assert abs(ours.std(1).mean().item() / spread - 1) < 2 * share, key
        assert abs(ours.mean().item() - mean) < 2 * share * spread, key
        assert ours.abs().max().item() < 1.4 * max(-low, high), key
        if not np.isnan(error):
            matrix = seeds[0][key].detach()
            gram = matrix.T @ matrix
            assert (gram - torch.eye(len(gram))).abs().max() < 1e-5, key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn_lstm", "dqn_gpt"])
def test_updates_in_float32_are_unchanged_and_in_bfloat16_train(name, monkeypatch):
    def built(**changes):
        arrays = load(name)
        learner = fresh_learner(name, 0, spaces_of(arrays), learning_rate=3e-3, **changes)
        return learner, sequences_of(arrays)

    if name == "dqn_gpt":  # on a processor without its products they are slow, but there
        monkeypatch.setattr(q_networks, "CPU_HAS_BFLOAT16", True)
    assert_precisions(built, dqn, monkeypatch)
