import pytest

from envs import check_env_name
from utils.errors import UserError, did_you_mean
from utils.settings import all_settings

CORRIDORS = (
    "'MiniGrid-KeyCorridorS3R1-v0', 'MiniGrid-KeyCorridorS3R2-v0' or 'MiniGrid-KeyCorridorS3R3-v0'"
)
DOORS = "'MiniGrid-RedBlueDoors-6x6-v0' or 'MiniGrid-RedBlueDoors-8x8-v0'"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("MiniGrid-KeyCorridor-v0", CORRIDORS),
        ("MiniGrid-KeyCoridor-v0", "'MiniGrid-KeyCorridorS3R1-v0'"),
        ("minigrid-keycorridors3r1-v0", "'MiniGrid-KeyCorridorS3R1-v0'"),
        ("MiniGrid-Memory-S11-v0", "'MiniGrid-MemoryS11-v0'"),
        ("MiniGrid-RedBlueDoors", DOORS),
        ("MiniGrid-Obstacles-Random-5x5", "'MiniGrid-Dynamic-Obstacles-Random-5x5-v0'"),
        ("MiniGrid-Unlock", "'MiniGrid-Unlock-v0'"),
        ("Minigrid_FourRoom", "'MiniGrid-FourRooms-v0'"),
        ("miniGridMemoryS11", "'MiniGrid-MemoryS11-v0'"),
        ("babyai-bosslevel", "'BabyAI-BossLevel-v0'"),
    ],
)
def test_a_misspelt_task_is_answered_with_the_near_ones(typed, meant):
    with pytest.raises(UserError) as caught:
        check_env_name(typed)
    assert str(caught.value).endswith(f" Did you mean {meant}?")


@pytest.mark.parametrize("typed", ["MiniGrid-Foo", "MiniGrid-", "MiniGrid-\0"])
def test_where_no_task_is_near_those_of_the_suite_are_told(typed):
    with pytest.raises(UserError, match=r"Allowed: MiniGrid-(?!.*BabyAI)"):
        check_env_name(typed)


MEANT = {"learnin_rate": "learning_rate", "learningrate": "learning_rate", "nsteps": "n_steps"}
MEANT |= {"replay_rate": "replay_ratio", "opnai": "openai"}


def test_a_misspelt_setting_is_answered_with_the_near_one():
    names = {*all_settings(), "openai"}
    found = {typed: did_you_mean(typed, names) for typed in MEANT}
    assert found == {typed: f" Did you mean '{meant}'?" for typed, meant in MEANT.items()}
    assert did_you_mean("anything", []) == ""
