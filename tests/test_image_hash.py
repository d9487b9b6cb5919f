import pytest
import torch

from models.image_hash import first_equal_rows, first_occurrences, image_hashes
from tests.agents import random_images


def test_equal_images_have_equal_hashes_wherever_they_stand():
    images = random_images(5)
    hashes = image_hashes(torch.cat((images, images.flip(0))))
    assert torch.equal(hashes[:5], hashes[5:].flip(0))


def test_every_single_bit_changes_both_hashes():
    image = random_images(1)
    n_bits = image.numel() * 8
    changed = image.repeat(n_bits, 1, 1, 1).view(n_bits, -1)
    bits = torch.arange(n_bits)
    changed[bits, bits // 8] ^= (1 << (bits % 8)).to(torch.uint8)
    hashes = torch.cat((image_hashes(image), image_hashes(changed.view(n_bits, 3, 9, 9))))
    assert len(hashes[:, 0].unique()) == n_bits + 1
    assert len(hashes[:, 1].unique()) == n_bits + 1


def test_pairs_of_high_bits_do_not_cancel():
    images = torch.zeros(2**12, 1, 8, 12, dtype=torch.uint8)  # 12 words
    on = torch.arange(2**12)[:, None] >> torch.arange(12) & 1
    images.view(2**12, 12, 8)[:, :, 7] = (128 * on).to(torch.uint8)
    hashes = image_hashes(images)
    assert len(hashes[:, 0].unique()) == len(hashes[:, 1].unique()) == 2**12


@pytest.mark.parametrize("second_halves", [[1, 1, 1, 2, 1], [1, 2, 1, 2, 2]])
def test_occurrences_are_numbered_and_lead_back(second_halves):
    hashes = torch.stack((torch.tensor([1, 2, 1, 2, 2]), torch.tensor(second_halves)), dim=1)
    firsts, number_of = first_occurrences(hashes)
    assert sorted(firsts.tolist()) == ([0, 1, 3] if second_halves[1] == 1 else [0, 1])
    assert torch.equal(hashes[firsts][number_of], hashes)


def test_rows_that_begin_alike_are_told_apart_by_the_rest():
    rows = torch.randn(6, 33)
    rows[:, :20] = 1.0
    rows[4] = rows[1]
    rows[5] = rows[2]
    firsts, number_of = first_equal_rows(rows)
    assert sorted(firsts.tolist()) == [0, 1, 2, 3]
    assert torch.equal(rows[firsts][number_of], rows)
