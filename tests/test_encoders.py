"""Trained encoders and heads."""

import copy
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence

from models import build_agent, encoders
from models.caching import to_float01
from models.encoders import SmallImpalaCNN, build_encoder
from models.heads import ActorCritic
from models.language.layers import Linear
from models.observations import ObservationBatch, ObservationPreprocessor, Observations
from models.settings import EncoderSettings
from tests import golden_data
from tests.agents import random_images, small_config
from tests.bad_inputs.harness import in_one_line
from tests.tiny_clip import tiny_settings
from utils.errors import UserError

IMAGE = Box(0, 255, (3, 9, 9), np.uint8)
SETTINGS = EncoderSettings(observation_cache_mb=0)


def cnn(cache_mb=1):
    torch.manual_seed(0)
    return SmallImpalaCNN((3, 9, 9), 8, cache_mb=cache_mb)


def test_an_encoder_is_asked_again_once_its_weights_have_changed():
    encoder, seen = cnn(), Observations(random_images(5))
    calls = []
    encoder.linear.register_forward_hook(lambda *_: calls.append(1))
    before = encoder(seen)
    assert not before.requires_grad
    assert torch.equal(encoder(seen), before)
    assert len(calls) == 2  # five images in blocks of four, once
    some = Observations(seen.images[torch.tensor([4, 0, 0, 3])])
    assert torch.equal(encoder(some), cnn(cache_mb=0)(seen)[[4, 0, 0, 3]])
    with torch.no_grad():
        encoder.linear.weight.mul_(2)
    assert not torch.equal(encoder(seen), before)
    torch.testing.assert_close(encoder(seen), encoder.of_pixels(to_float01(seen.images)))
    encoder.load_state_dict({name: 0 * value for name, value in encoder.state_dict().items()})
    assert not encoder(seen).any()


def test_a_copy_reads_with_its_own_weights():
    encoder, seen = cnn(), Observations(random_images(3))
    target = copy.deepcopy(encoder)
    with torch.no_grad():
        encoder.linear.weight.zero_()
    assert target(seen).any()
    assert torch.equal(target(seen), cnn()(seen))


SPACES = {
    "an image": (IMAGE, SmallImpalaCNN),
    "a vector": (Box(-1, 1, (4,), np.float32), encoders.VectorEncoder),
    "a number": (Box(-1, 1, (), np.float32), encoders.VectorEncoder),
    "a discrete number": (Discrete(5, start=2), encoders.VectorEncoder),
    "several discrete numbers": (MultiDiscrete([3, 2]), encoders.VectorEncoder),
    "yes or no": (MultiBinary(6), encoders.VectorEncoder),
    "an image and numbers": (Dict(view=IMAGE, way=Discrete(4)), encoders.JointEncoder),
}


def batched(space, n):
    samples = [space.sample() for _ in range(n)]
    if isinstance(space, Dict):
        return {key: np.stack([sample[key] for sample in samples]) for key in space}
    return np.stack(samples)


@pytest.mark.parametrize("case", SPACES)
def test_an_encoder_is_chosen_by_what_an_observation_has(case):
    space, kind = SPACES[case]
    space.seed(0)
    reader = ObservationPreprocessor(space)
    encoder = build_encoder(reader, SETTINGS, 8)
    assert isinstance(encoder, kind)
    observations = reader(batched(space, 7))
    acting = encoder(observations)
    learning = encoder.learn(ObservationBatch(observations))
    assert acting.shape == (7, 8)
    assert learning.requires_grad
    torch.testing.assert_close(acting, learning.detach(), atol=1e-6, rtol=0)


def test_parts_of_a_dictionary_stand_in_the_order_of_the_space():
    space = Dict(b=Discrete(2), a=Box(0, 9, (2,), np.float32))
    reader = ObservationPreprocessor(space)
    read = reader({"a": np.array([[3.0, 4.0]]), "b": np.array([1])})
    assert read.vectors.tolist() == [[0, 1, 3, 4]]
    assert reader.n_numbers == 4
    assert reader.number_names == ["b = 0", "b = 1", "a 1", "a 2"]
    assert ObservationPreprocessor(space["a"]).number_names == ["", ""]


@pytest.mark.parametrize("sides", [(5, 5), (5, 9), (7, 7), (9, 9), (12, 40), (20, 20), (56, 56)])
def test_images_of_every_size_have_an_encoder(sides):
    encoder = SmallImpalaCNN((3, *sides), 4)
    images = torch.randint(256, (6, 3, *sides), dtype=torch.uint8)
    batch = ObservationBatch(Observations(images[torch.tensor([0, 1, 2, 3, 4, 5, 0, 0, 1])]))
    learned = encoder.learn(batch)
    torch.testing.assert_close(learned[:6], encoder(Observations(images)), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("space", "why"),
    [
        (Box(0, 255, (3, 4, 8), np.uint8), "images of 4 x 8 pixels are too small"),
        (Sequence(Discrete(3)), "Sequence"),
        (Dict(a=IMAGE, b=Box(0, 255, (3, 9, 8), np.uint8)), "images of unequal sizes"),
        (Dict(a=Box(0, 1, (3, 9, 9), np.float32)), "a is Box"),
    ],
)
def test_what_cannot_be_seen_is_refused_in_one_line(space, why):
    with in_one_line(why):
        build_encoder(ObservationPreprocessor(space), SETTINGS, 8)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["HELMv2", "SHELM"])
def test_a_language_model_behind_clip_is_given_images_or_refused(model):
    config = small_config(model=model, **tiny_settings(model))
    with pytest.raises(UserError, match=f"{model} reads images"):
        build_agent(config, Box(-1, 1, (4,), np.float32), Discrete(2))


NETWORKS = golden_data.load("networks")
SUITES = sorted({key.split(".")[1] for key in NETWORKS if key.startswith("cnn.")})


@pytest.mark.parametrize("suite", SUITES)
def test_the_encoder_agrees_with_the_original(suite):
    arrays = golden_data.parameters(NETWORKS, f"cnn.{suite}.")
    observations, features = arrays.pop("observations"), arrays.pop("features")
    channels = tuple(arrays[f"convolutions.{layer}.weight"].shape[0] for layer in (0, 2))
    encoder = SmallImpalaCNN(observations.shape[1:], features.shape[1], channels)
    encoder.load_state_dict(arrays)
    torch.testing.assert_close(encoder.of_pixels(observations), features, atol=1e-5, rtol=0)


@pytest.fixture
def heads():
    sizes = [NETWORKS[f"actor.{name}"].shape[1] for name in ("features", "probabilities")]
    heads = ActorCritic(*sizes)
    heads.actor.load_state_dict(golden_data.under(NETWORKS, "actor.actor."))
    critic = golden_data.under(NETWORKS, "critic.")
    heads.critic.load_state_dict({k: v for k, v in critic.items() if k != "values"})
    return heads


def test_the_actor_and_the_critic_agree_with_the_original(heads):
    features = NETWORKS["actor.features"]
    found = heads.evaluate(features, NETWORKS["actor.actions"])._asdict()
    found |= {"probabilities": heads.actor(features).softmax(-1), "values": heads.values(features)}
    for name in ("probabilities", "log_probs", "entropy", "values"):
        expected = NETWORKS[f"{'critic' if name == 'values' else 'actor'}.{name}"]
        torch.testing.assert_close(found[name], expected, atol=1e-5, rtol=0)
    step = heads.step(features, features[:, :0], deterministic=True)
    assert step.actions.tolist() == NETWORKS["actor.probabilities"].argmax(-1).tolist()


def test_weights_start_as_published():
    torch.manual_seed(0)
    encoder, heads = SmallImpalaCNN((3, 56, 56), 32), ActorCritic(32, 5)
    weight = encoder.convolutions[0].weight
    fan_in, fan_out = 3 * 8 * 8, 64 * 8 * 8
    assert weight.abs().max() <= math.sqrt(2) * math.sqrt(6 / (fan_in + fan_out))
    last = heads.actor[3].weight  # [5, 128], orthogonal rows of length sqrt(2)
    torch.testing.assert_close(last @ last.T, 2 * torch.eye(5), atol=1e-5, rtol=0)
    assert not encoder.linear.bias.any()
    assert not heads.critic[0].bias.any()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7,), (5, 3), (2, 3, 4)])
def test_a_large_product_is_pytorchs_with_its_gradients(shape, bias, monkeypatch):
    monkeypatch.setattr("models.language.layers.LARGE_PRODUCT", 0)
    layer = Linear(6, 10, bias=bias)
    plain = torch.nn.Linear(6, 10, bias=bias)
    plain.load_state_dict(layer.state_dict())
    found, gradients = [], torch.randn(10, *shape).movedim(0, -1)  # not contiguous
    for each in (layer, plain):
        torch.manual_seed(1)
        rows = torch.randn(6, *shape).movedim(0, -1).requires_grad_()
        output = each(rows)
        output.backward(gradients)
        found.append([output, rows.grad, *(parameter.grad for parameter in each.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert type(found[0][0].grad_fn).__name__ == "LinearProductBackward"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(rows).dtype == torch.bfloat16
