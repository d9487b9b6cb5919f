import math

import pytest
import torch

from models.encoders import SmallImpalaCNN
from models.heads import ActorCritic
from tests import golden_data

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
    n_actions, n_features = (
        NETWORKS[f"actor.{name}"].shape[1] for name in ("probabilities", "features")
    )
    heads = ActorCritic(n_features, n_actions)
    heads.actor.load_state_dict(golden_data.under(NETWORKS, "actor.actor."))
    critic = golden_data.under(NETWORKS, "critic.")
    heads.critic.load_state_dict({k: v for k, v in critic.items() if k != "values"})
    return heads


def test_the_actor_agrees_with_the_original(heads):
    features = NETWORKS["actor.features"]
    probabilities = heads.actor(features).softmax(-1)
    result = heads.evaluate(features, NETWORKS["actor.actions"])
    torch.testing.assert_close(probabilities, NETWORKS["actor.probabilities"], atol=1e-5, rtol=0)
    torch.testing.assert_close(result.log_probs, NETWORKS["actor.log_probs"], atol=1e-5, rtol=0)
    torch.testing.assert_close(result.entropy, NETWORKS["actor.entropy"], atol=1e-5, rtol=0)


def test_the_critic_agrees_with_the_original(heads):
    values = heads.values(NETWORKS["actor.features"])
    torch.testing.assert_close(values, NETWORKS["critic.values"], atol=1e-5, rtol=0)


def test_each_environment_gets_its_own_most_probable_action(heads):
    features = NETWORKS["actor.features"]
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


@pytest.mark.parametrize(("side", "kernel"), [(9, 4), (40, 8)])
def test_small_images_get_small_kernels(side, kernel):
    encoder = SmallImpalaCNN((3, side, side), 8)
    assert encoder.convolutions[0].kernel_size == (kernel, kernel)


def test_psychlabs_encoder_is_that_of_every_larger_image():
    encoder = SmallImpalaCNN((3, 80, 80), 8, channels=(64, 128))
    assert (encoder.convolutions[2].kernel_size, encoder.convolutions[2].stride) == ((4, 4), (2, 2))
    assert encoder.linear.in_features == 8192
