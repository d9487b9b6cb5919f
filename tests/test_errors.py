import pytest

from envs import check_env_name, minigrid
from settings import all_settings
from utils.errors import UserError, suggestion

CORRIDORS = (
    "'MiniGrid-KeyCorridorS3R1-v0', 'MiniGrid-KeyCorridorS3R2-v0' or 'MiniGrid-KeyCorridorS3R3-v0'"
)

NAMES = [name for name in minigrid.names() if name.startswith("MiniGrid-")]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("MiniGrid-KeyCorridor-v0", CORRIDORS),
        ("MiniGrid-KeyCorridor", CORRIDORS),
        ("MiniGrid-KeyCoridor-v0", "'MiniGrid-KeyCorridorS3R1-v0'"),
        ("minigrid-keycorridors3r1-v0", "'MiniGrid-KeyCorridorS3R1-v0'"),
        ("MiniGrid-KeyCorridorS3R1-v1", "'MiniGrid-KeyCorridorS3R1-v0'"),
        ("MiniGrid-Memory-S11-v0", "'MiniGrid-MemoryS11-v0'"),
        ("MiniGrid-RedBlueDoor-6x6", "'MiniGrid-RedBlueDoors-6x6-v0'"),
        (
            "MiniGrid-RedBlueDoors",
            "'MiniGrid-RedBlueDoors-6x6-v0' or 'MiniGrid-RedBlueDoors-8x8-v0'",
        ),
        ("MiniGrid-Obstacles-Random-5x5", "'MiniGrid-Dynamic-Obstacles-Random-5x5-v0'"),
        ("MiniGrid-Unlock", "'MiniGrid-Unlock-v0'"),
        ("Minigrid_FourRoom", "'MiniGrid-FourRooms-v0'"),
    ],
)
def test_a_misspelt_task_is_answered_with_the_near_ones(typed, meant):
    assert suggestion(typed, NAMES) == f" Did you mean {meant}?"


@pytest.mark.parametrize("typed", ["MiniGrid-Foo", "Pong", "", "MiniGrid-", "\0"])
def test_nothing_far_is_suggested(typed):
    assert suggestion(typed, NAMES) == ""


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("learnin_rate", "'learning_rate'"),
        ("learningrate", "'learning_rate'"),
        ("nsteps", "'n_steps'"),
        ("rate", "'learning_rate', 'curiosity_learning_rate' or 'temperature_learning_rate'"),
    ],
)
def test_a_misspelt_setting_is_answered_with_the_near_one(typed, meant):
    assert suggestion(typed, all_settings()) == f" Did you mean {meant}?"


def test_a_single_name_may_be_meant_too():
    assert suggestion("opnai", ["openai"]) == " Did you mean 'openai'?"
    assert suggestion("anything", []) == ""


@pytest.mark.parametrize(
    "typed", ["minigrid-memorys11-v0", "MINIGRID-MemoryS11", "miniGridMemoryS11"]
)
def test_the_case_of_a_suite_does_not_hide_its_tasks(typed):
    with pytest.raises(UserError, match=r"Did you mean 'MiniGrid-MemoryS11-v0'\?"):
        check_env_name(typed)
