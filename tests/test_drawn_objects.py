import numpy as np

from envs.continuous_recognition import COLOURS, drawn_objects


def test_there_are_hundreds_of_pictures_each_unlike_the_others():
    names, pictures = drawn_objects(80)
    assert pictures.shape == (len(names), 3, 80, 80)
    assert pictures.dtype == np.uint8
    assert len(set(names)) == len(names) >= 200
    assert len({picture.tobytes() for picture in pictures}) == len(names)


def test_a_name_says_what_is_seen():
    names, pictures = drawn_objects(80)
    ring = pictures[names.index("red ring")]
    np.testing.assert_array_equal(ring[:, 40, 40], 255)
    np.testing.assert_array_equal(ring[:, 40, 15], COLOURS["red"])
    striped = pictures[names.index("striped blue star")]
    solid = pictures[names.index("blue star")]
    n_blue = [
        (p == np.array(COLOURS["blue"])[:, None, None]).all(0).sum() for p in (striped, solid)
    ]
    assert 0 < n_blue[0] < n_blue[1]
