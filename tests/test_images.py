import pytest
import torch

from models.encoders import SmallImpalaCNN
from models.images import DistinctImages, unit_images


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


def test_windows_put_together_are_the_images():
    images = tiled_images(5, side=24)
    windows, window_of = DistinctImages(images).windows(8, 8)
    rebuilt = windows[window_of].permute(0, 3, 1, 4, 2, 5).reshape(images.shape)
    assert torch.equal(rebuilt, images)
    assert len(windows) == 3


def test_a_selection_knows_only_its_own_windows():
    images = DistinctImages(
        torch.arange(4, dtype=torch.uint8).repeat(3, 8, 8, 1).permute(3, 0, 1, 2)
    )
    images.windows(4, 4)
    selection = images.select(torch.tensor([3, 1])).select(torch.tensor([0]))
    windows, window_of = selection.windows(4, 4)
    assert len(selection) == 1
    assert torch.equal(selection.images, torch.full((1, 3, 8, 8), 3, dtype=torch.uint8))
    assert windows.unique().tolist() == [3]
    assert window_of.tolist() == [[[0, 0], [0, 0]]]


@pytest.mark.parametrize("side", [9, 56, 64, (60, 80)])
@pytest.mark.parametrize("make", [tiled_images, random_images])
def test_equal_windows_are_convolved_once_with_the_same_features_and_gradients(make, side):
    height, width = side if isinstance(side, tuple) else (side, side)
    images = make(6, 80 if make is random_images or side != 9 else 56)[:, :, :height, :width]
    encoder = SmallImpalaCNN((3, height, width), 10)
    plain = encoder.of_pixels(unit_images(images))
    weights = torch.randn_like(plain)
    expected = torch.autograd.grad((plain * weights).sum(), list(encoder.parameters()))
    found = encoder.of_distinct(DistinctImages(images.contiguous()))
    gradients = torch.autograd.grad((found * weights).sum(), list(encoder.parameters()))
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-4, rtol=1e-4)


def test_few_windows_save_work_and_many_do_not(monkeypatch):
    encoder = SmallImpalaCNN((3, 56, 56), 10)
    widths = []
    first = encoder.convolutions[0]
    first.register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].shape))
    encoder.of_distinct(DistinctImages(tiled_images(40)[:1].repeat(40, 1, 1, 1)))
    encoder.of_distinct(DistinctImages(random_images(4)))
    assert widths == [(25, 3, 20, 20), (4, 3, 56, 56)]
