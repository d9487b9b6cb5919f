"""Equal images are computed once, within a batch and over a run."""

import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import caching
from models.caching import DistinctImages, ObservationCache, image_hashes, to_float01
from models.encoders import SmallImpalaCNN, TileEmbedder
from models.language.layers import DenseEmbeddings
from models.observation_to_language import FrozenHopfield, random_projection
from models.observations import ObservationBatch, Observations
from tests.agents import random_images


def tiled_images(n_images, side=56, tile=8):
    """Return different images of few different tiles.  [P, 3, side, side] uint8"""
    generator = torch.Generator().manual_seed(0)
    tiles = torch.randint(256, (3, 3, tile, tile), generator=generator, dtype=torch.uint8)
    n_tiles = side // tile
    which = torch.randint(3, (n_images, n_tiles, n_tiles), generator=generator)
    rows = tiles[which].permute(0, 3, 1, 4, 2, 5)  # [P, 3, row, line, column, line]
    return rows.reshape(n_images, 3, side, side)


def noise(n_images, side=56):
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
@pytest.mark.parametrize("make", [tiled_images, noise])
def test_what_is_equal_is_computed_once_with_the_same_features_and_gradients(make, side):
    height, width = side if isinstance(side, tuple) else (side, side)
    images = make(6, 80 if make is noise or side != 9 else 56)[:, :, :height, :width]
    encoder = SmallImpalaCNN((3, height, width), 10)
    assert_as_plain(encoder, images.contiguous())


def test_small_images_that_are_equal_are_embedded_once_with_the_same_features_and_gradients():
    assert_as_plain(TileEmbedder((3, 9, 9), 10), random_images(6))


def assert_as_plain(encoder, images):
    """Compare an encoder's features for learning with those of every image by itself."""
    images = images[torch.tensor([0, 3, 3, 1, 4, 5, 0, 2])]
    plain = encoder.of_pixels(to_float01(images))
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
    encoder.learn(batch_of(noise(4)[torch.arange(40) % 4]))
    assert seen == [(5, 3, 20, 20), (4, 3, 56, 56)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_equal_images_have_one_row_wherever_they_stand(numbers):
    hashes = image_hashes(numbered_images(*numbers))
    firsts, number_of = caching.first_occurrence_rows(hashes)
    assert sorted(firsts.tolist()) == sorted(numbers.index(number) for number in set(numbers))
    assert torch.equal(hashes[firsts][number_of], hashes)


def test_every_single_bit_changes_both_hashes():
    image = random_images(1)
    n_bits = image.numel() * 8
    changed = image.repeat(n_bits, 1, 1, 1).view(n_bits, -1)
    bits = torch.arange(n_bits)
    changed[bits, bits // 8] ^= (1 << (bits % 8)).to(torch.uint8)
    hashes = torch.cat((image_hashes(image), image_hashes(changed.view(n_bits, 3, 9, 9))))
    assert len(hashes[:, 0].unique()) == n_bits + 1
    assert len(hashes[:, 1].unique()) == n_bits + 1


def test_images_of_one_equal_hash_of_two_are_different():
    hashes = torch.tensor([[1, 1], [2, 1], [1, 1], [2, 2], [2, 1]])
    firsts, number_of = caching.first_occurrence_rows(hashes)
    assert sorted(firsts.tolist()) == [0, 1, 3]
    assert torch.equal(hashes[firsts][number_of], hashes)


class Recorder:
    """Returns each image's first value in a row of 256 floats (1 KiB) and counts its work.

    Blocks larger than `block_size` come out wrong by `error`.
    """

    def __init__(self, error=0.0, block_size=0):
        self.blocks, self.error, self.block_size = [], error, block_size

    def __call__(self, images):
        self.blocks.append(len(images))
        error = self.error * (len(images) > self.block_size)
        return images[:, :1, 0, 0].float().expand(-1, 256) + error


def numbered_images(*numbers):
    images = torch.zeros(len(numbers), 3, 9, 9, dtype=torch.uint8)
    return images + torch.tensor(numbers, dtype=torch.uint8)[:, None, None, None]


@given(
    batches=st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=40), max_size=6),
    n_rows=st.integers(0, 24),
    block_size=st.integers(1, 8),
    larger_blocks=st.sets(st.integers(2, 4), max_size=2),
    other_bits=st.booleans(),
)
def test_a_cache_of_any_size_and_blocks_gives_what_the_function_gives(
    batches, n_rows, block_size, larger_blocks, other_bits
):
    plain = Recorder(2**-20 if other_bits else 0.0, block_size)
    sizes = [block_size * times for times in larger_blocks]
    cache = ObservationCache(plain, n_rows * 1.5 / 1024, block_size, sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caching, "FIRST_ROWS", 2)  # so that the table grows
        for numbers in batches:
            assert cache(numbered_images(*numbers))[:, 0].tolist() == numbers
    seen = [number for numbers in batches for number in numbers]
    assert cache.n_seen == len(seen)
    if n_rows >= 16 and not larger_blocks:  # nothing has left
        assert len(set(seen)) <= sum(plain.blocks) < len(set(seen)) + len(batches) * block_size


def test_the_least_recently_used_leaves():
    function = Recorder()
    cache = ObservationCache(function, megabytes=3 / 1024, block_size=1)  # two rows
    for numbers, n_computed in (([1, 2], 2), ([1], 2), ([3], 3), ([1, 3], 3), ([2], 4)):
        assert cache(numbered_images(*numbers))[:, 0].tolist() == numbers
        assert len(function.blocks) == n_computed


def test_many_images_are_computed_in_larger_blocks():
    function = Recorder()
    cache = ObservationCache(function, megabytes=0, block_size=4, larger_blocks=(8, 16))
    for _ in range(2):
        cache(numbered_images(*range(26)))
    tried = [4, 4, 4, 4, 16, 4, 4, 8]  # the first of each size, beside small ones
    assert function.blocks == [*tried, 16, 8, 4, 16, 8, 4]


@pytest.mark.parametrize("n_threads", [1, 2])
def test_the_same_bits_come_out_with_the_cache_on_and_off(n_threads):
    torch.set_num_threads(n_threads)
    embeddings = DenseEmbeddings(torch.randn(5000, 64))
    hopfield = FrozenHopfield(random_projection(64, 81), embeddings, 9.0)

    def function(images):
        return hopfield(to_float01(images))

    on, off = (ObservationCache(function, megabytes, 4, (16, 64)) for megabytes in (1, 0))
    pool = random_images(90)
    for n_envs in (1, 3, 16, 64, 5, 80, 16):
        images = pool[torch.randint(0, 90, (n_envs,))]
        assert torch.equal(on(images), off(images))
    torch.set_num_threads(1)
    assert on.hit_rate > 0.3


def test_what_finds_the_results_counts_as_memory():
    def first_pixel(images):
        return images[:, 0, 0, :1].float()  # four bytes a result

    cache = ObservationCache(first_pixel, megabytes=1, block_size=100)
    images = random_images(10_000)
    tracemalloc.start()
    for part in images.split(500):
        cache(part)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.5 * 2**20 < held < 1.2 * 2**20
