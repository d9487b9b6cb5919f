"""The README claims what a test or a run holds, and so does the page about which memory to take."""

import ast
import re

import pytest

from analysis import scoreboard
from utils.errors import ROOT

FEATURES = {
    "Memories": (
        "test_memories::test_acting_equals_unrolling_wherever_episodes_begin",
        "test_transformers::test_other_encoders_read_sentences_as_the_transformers_library_does",
        "test_decoder::test_episodes_agree_with_recomputing_their_whole_context",
    ),
    "Learners": (
        "test_off_policy_agents::test_acting_equals_learning_in_episodes_longer_than_a_sequence",
        "test_runs::test_something_was_learned_and_every_number_is_finite",
        "test_td3::test_gradient_steps_are_those_of_the_equations",
    ),
    "Environments": (
        "test_suites::test_an_agent_is_trained_and_played",
        "test_any_gymnasium::test_a_kind_of_observation_reaches_an_agent",
    ),
    "Goals": (
        "test_server_suggester::test_a_server_suggests_and_is_asked_once",
        "test_goals::test_a_goal_is_paid",
    ),
    "Curiosity": (
        "test_curiosity::test_rewards_and_learning_are_those_of_the_original",
        "test_curiosity::test_e3b_pays_for_what_an_episode_has_not_shown",
    ),
    "Original numbers": (
        "test_ppo::test_one_update_agrees_with_the_original",
        "test_off_policy_updates::test_gradients_parameters_and_logs_of_three_updates_are_the_originals",
        "test_ellm::test_three_updates_are_the_originals",
    ),
    "Exact resume": ("test_runs::test_a_resumed_run_is_the_whole_run_to_the_bit",),
    "Memory check": ("test_check::test_each_fault_is_found_by_the_check_that_is_for_it",),
    "Page of an episode": ("test_page_in_browser::test_every_step_shows_what_was_recorded",),
    "Safe to receive": ("test_trust::test_nothing_that_a_received_run_names_acts",),
    "Many runs": (
        "test_sweep::test_the_same_command_again_does_only_what_is_missing_and_draws_all_runs",
        "test_search::test_a_search_ends_with_table_best_settings_and_pictures",
        "test_ranks::test_torchrun_trains_and_writes_one_run_folder",
    ),
}


def names_in(name):
    tree = ast.parse((ROOT / "tests" / f"{name}.py").read_text())
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


def test_the_list_of_features_has_these_names():
    features = (ROOT / "README.md").read_text().split("## Features")[1].split("\n## ")[0]
    assert re.findall(r"^- \*\*(.+?)\*\*", features, re.MULTILINE) == [*FEATURES]


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_has_its_tests(feature):
    for name in FEATURES[feature]:
        file, _, test = name.partition("::")
        assert test in names_in(file)


SHORT = {"HELM": "HELM, MiniLM", "SHELM": "SHELM, grid-clip"}


def cells_of(page, head):
    """Return the table that begins so, as {(name of its row, name of its column): cell}."""
    text = (ROOT / page).read_text()
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()
    columns, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {
        (name, column): cell
        for name, *cells in rows
        for column, cell in zip(columns[1:], cells, strict=True)
    }


@pytest.mark.parametrize(
    ("page", "head", "between"),
    [
        ("README.md", "| task | none", "/"),
        ("docs/explanation/which_memory_when.md", "| memory | one cue", " of "),
    ],
)
def test_tables_of_seeds_that_solve_a_task_count_the_scoreboards_runs(page, head, between):
    cells = scoreboard.read_cells([ROOT / "docs/results/scoreboard.csv"], [])
    scores = {
        (each.task.name, each.agent.name): each.task.normalised(each.scores) for each in cells
    }
    for (row, column), cell in cells_of(page, head).items():
        task, agent = (column.split(": ")[1], row) if ": " in column else (row, column)
        reached = scores.get((task, SHORT.get(agent, agent).removesuffix(", one layer")), [])
        solved = sum(score >= scoreboard.SOLVED for score in reached)
        expected = f"{solved}{between}{len(reached)}" if len(reached) else ""
        assert cell.replace("MiniGrid only", "") == expected, (row, column)
