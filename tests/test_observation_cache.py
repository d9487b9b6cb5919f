import tracemalloc

import pytest
import torch

from models.caching import ObservationCache, unit_images
from models.language.layers import DenseEmbeddings
from models.observation_to_language import FrozenHopfield, random_projection
from tests.agents import random_images


class Recorder:
    """Returns each image's first value in a row of 256 floats (1 KiB) and counts its work."""

    def __init__(self):
        self.blocks = []

    def __call__(self, images):
        self.blocks.append(len(images))
        return images[:, :1, 0, 0].float().expand(-1, 256)


def numbered_images(*numbers):
    images = torch.zeros(len(numbers), 3, 9, 9, dtype=torch.uint8)
    return images + torch.tensor(numbers, dtype=torch.uint8)[:, None, None, None]


def first_values(results):
    return results[:, 0].tolist()


def test_an_image_is_computed_once():
    function = Recorder()
    cache = ObservationCache(function, megabytes=1, block_size=1)
    assert first_values(cache(numbered_images(1, 2, 1))) == [1, 2, 1]
    assert first_values(cache(numbered_images(2, 1))) == [2, 1]
    assert first_values(cache(numbered_images(3, 2))) == [3, 2]
    assert len(function.blocks) == 3
    assert cache.hit_rate == 3 / 7


def test_the_least_recently_used_leaves():
    function = Recorder()
    cache = ObservationCache(function, megabytes=3 / 1024, block_size=1)  # two rows
    cache(numbered_images(1, 2))
    cache(numbered_images(1))
    cache(numbered_images(3))  # 2 leaves
    n_computed = len(function.blocks)
    assert first_values(cache(numbered_images(1, 3))) == [1, 3]
    assert len(function.blocks) == n_computed
    assert first_values(cache(numbered_images(2))) == [2]
    assert len(function.blocks) == n_computed + 1


def test_more_images_at_once_than_there_are_rows_come_out_right():
    cache = ObservationCache(Recorder(), megabytes=3 / 1024, block_size=4)
    for _ in range(3):
        assert first_values(cache(numbered_images(*range(9)))) == list(range(9))


def test_the_table_grows_and_keeps_what_it_has():
    cache = ObservationCache(Recorder(), megabytes=4, block_size=100)
    images = random_images(3000)
    expected = images[:, 0, 0, 0].float()
    for _ in range(2):
        for start in range(0, 3000, 500):
            part = slice(start, start + 500)
            assert torch.equal(cache(images[part])[:, 0], expected[part])
    assert cache.hit_rate >= 0.5


def test_many_images_are_computed_in_larger_blocks():
    function = Recorder()
    cache = ObservationCache(function, megabytes=0, block_size=4, larger_blocks=(8, 16))
    for _ in range(2):
        numbers = list(range(26))
        assert first_values(cache(numbered_images(*numbers))) == numbers
    tried = [4, 4, 4, 4, 16, 4, 4, 8]  # the first of each size, beside small ones
    assert function.blocks == [*tried, 16, 8, 4, 16, 8, 4]


def test_larger_blocks_of_other_bits_are_left_alone():
    def summed_in_another_order(images):
        return images[:, :1, 0, 0].float() + (len(images) > 4) * 2**-20

    cache = ObservationCache(summed_in_another_order, megabytes=0, block_size=4, larger_blocks=(8,))
    assert first_values(cache(numbered_images(*range(17)))) == list(range(17))


@pytest.mark.parametrize("n_threads", [1, 2])
def test_the_same_bits_come_out_with_the_cache_on_and_off(n_threads):
    torch.set_num_threads(n_threads)
    hopfield = FrozenHopfield(
        random_projection(64, 81), DenseEmbeddings(torch.randn(5000, 64)), 9.0
    )

    def function(images):
        return hopfield(unit_images(images))

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
