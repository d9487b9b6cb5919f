import pytest
import torch

from models.caching import DistinctImages, first_occurrences, image_hashes, unit_images
from models.encoders import SmallImpalaCNN
from models.observations import ObservationBatch, Observations
from models.q_networks import TileEmbedder
from tests.agents import random_images as small_images


def tiled_images(n_images, side=56, tile=8):
    """Return different images of few different tiles.  [P, 3, side, side] uint8"""
    generator = torch.Generator().manual_seed(0)
    tiles = torch.randint(256, (3, 3, tile, tile), generator=generator, dtype=torch.uint8)
    n_tiles = side // tile
    which = torch.randint(3, (n_images, n_tiles, n_tiles), generator=generator)
    rows = tiles[which].permute(0, 3, 1, 4, 2, 5)  # [P, 3, row, line, column, line]
    return rows.reshape(n_images, 3, side, side)


def random_images(n_images, side=56):
    generator = torch.Generator().manual_seed(0)
    shape = (n_images, 3, side, side)
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


def batch_of(images):
    return ObservationBatch(Observations(images))


def test_a_part_of_a_batch_knows_its_own_images_and_windows_alone():
    images = torch.arange(4, dtype=torch.uint8).repeat(3, 8, 8, 1).permute(3, 0, 1, 2)
    batch = batch_of(images[torch.tensor([0, 1, 2, 3, 1])])
    DistinctImages(batch).windows(4, 4)
    part = batch.select(torch.tensor([4, 3, 1])).select(torch.tensor([2, 0]))  # the same twice
    different = DistinctImages(part)
    windows, window_of = different.windows(4, 4)
    assert torch.equal(different.images, images[1:2])
    assert different.row_of.tolist() == [0, 0]
    assert windows.unique().tolist() == [1]
    assert window_of.tolist() == [[[0, 0], [0, 0]]]


@pytest.mark.parametrize("side", [9, 56, 64, (60, 80)])
@pytest.mark.parametrize("make", [tiled_images, random_images])
def test_what_is_equal_is_computed_once_with_the_same_features_and_gradients(make, side):
    height, width = side if isinstance(side, tuple) else (side, side)
    images = make(6, 80 if make is random_images or side != 9 else 56)[:, :, :height, :width]
    encoder = SmallImpalaCNN((3, height, width), 10)
    assert_as_plain(encoder, images.contiguous())


def test_small_images_that_are_equal_are_embedded_once_with_the_same_features_and_gradients():
    assert_as_plain(TileEmbedder((3, 9, 9), 10), small_images(6))


def assert_as_plain(encoder, images):
    """Compare what an encoder learns from with what it makes of every image by itself."""
    images = images[torch.tensor([0, 3, 3, 1, 4, 5, 0, 2])]
    plain = encoder.of_pixels(unit_images(images))
    weights = torch.randn_like(plain)
    expected = torch.autograd.grad((plain * weights).sum(), list(encoder.parameters()))
    found = encoder.learn(batch_of(images))
    gradients = torch.autograd.grad((found * weights).sum(), list(encoder.parameters()))
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-4, rtol=1e-4)


def test_few_windows_save_work_and_many_do_not():
    encoder = SmallImpalaCNN((3, 56, 56), 10)
    seen = []
    first = encoder.convolutions[0]
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    striped = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 3, 56, 56)
    encoder.learn(batch_of(striped[torch.arange(40) % 5]))
    encoder.learn(batch_of(random_images(4)[torch.arange(40) % 4]))
    assert seen == [(5, 3, 20, 20), (4, 3, 56, 56)]


def test_equal_images_have_equal_hashes_wherever_they_stand():
    images = small_images(5)
    hashes = image_hashes(torch.cat((images, images.flip(0))))
    assert torch.equal(hashes[:5], hashes[5:].flip(0))


def test_every_single_bit_changes_both_hashes():
    image = small_images(1)
    n_bits = image.numel() * 8
    changed = image.repeat(n_bits, 1, 1, 1).view(n_bits, -1)
    bits = torch.arange(n_bits)
    changed[bits, bits // 8] ^= (1 << (bits % 8)).to(torch.uint8)
    hashes = torch.cat((image_hashes(image), image_hashes(changed.view(n_bits, 3, 9, 9))))
    assert len(hashes[:, 0].unique()) == n_bits + 1
    assert len(hashes[:, 1].unique()) == n_bits + 1


@pytest.mark.parametrize("second_halves", [[1, 1, 1, 2, 1], [1, 2, 1, 2, 2]])
def test_occurrences_are_numbered_and_lead_back(second_halves):
    hashes = torch.stack((torch.tensor([1, 2, 1, 2, 2]), torch.tensor(second_halves)), dim=1)
    firsts, number_of = first_occurrences(hashes)
    assert sorted(firsts.tolist()) == ([0, 1, 3] if second_halves[1] == 1 else [0, 1])
    assert torch.equal(hashes[firsts][number_of], hashes)
