"""The episode page in a real browser: every control, by mouse and by keyboard."""

import shutil

import pytest

from report.page import EpisodePage
from tests.recordings import (
    ACTIONS,
    KEY_STEP,
    VOCABULARY,
    of_goals,
    of_many_actions,
    of_vectors,
    of_words,
    recording,
)

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LENGTH = 12
SCREENS = {"laptop": (1400, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="no playwright to drive a browser")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser found: none of {', '.join(BROWSERS)}")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the pages: an agent of words, one of single words, one without language."""
    folder = tmp_path_factory.mktemp("pages")
    for name, kind in {
        "shelm": {},
        "helm": {"n_words": 1},
        "cnn": {"n_words": 0, "n_layers": 0},
    }.items():
        page = EpisodePage(f"{name} on a task", ACTIONS)
        for seed, length in enumerate((LENGTH, 5, 1)):
            page.add(recording(length, seed, **kind))
        page.write(folder / f"{name}.html", {"return": "0.500 ± 0.000"})
    for name, has_overviews in {"vectors": True, "blind": False}.items():
        page = EpisodePage("GPT on a maze", ACTIONS, ["x", "y"], "blue: the agent")
        page.add(of_vectors(LENGTH, has_overviews=has_overviews))
        page.write(folder / f"{name}.html", {"return": "0.500"})
    page = EpisodePage("LSTM on missions", ACTIONS)
    page.add(of_words(LENGTH))
    page.write(folder / "words.html", {"return": "0.500"})
    page = EpisodePage("CNN with goals", ACTIONS)
    page.add(of_goals(LENGTH))
    page.write(folder / "goals.html", {"return": "0.500"})
    page = EpisodePage("CNN on many actions", [f"action {n}" for n in range(30)])
    page.add(of_many_actions(LENGTH))
    page.write(folder / "many.html", {"return": "0.500"})
    return folder


@pytest.fixture
def opened(browser, written):
    """Return a function that opens a page and, at the end, fails if it reported an error."""
    contexts, errors = [], []

    def open_page(name="shelm", screen="laptop", place="", **options):
        width, height = SCREENS[screen]
        viewport = {"width": width, "height": height}
        contexts.append(browser.new_context(viewport=viewport, offline=True, **options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.goto((written / f"{name}.html").as_uri() + place)
        page.wait_for_selector("#episodes [aria-current=true]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


def step(page):
    """Return the present step, counted from 0."""
    return int(page.inner_text("#step").split("/")[0]) - 1


def words(page):
    return page.locator("#words .word").all_inner_texts()


def words_of(t, n_words=2):
    return [VOCABULARY[(t + k) % 4] for k in range(n_words)]


def picture(page, figure):
    """Return the colour in the upper left corner of a picture."""
    script = "c => [...c.getContext('2d').getImageData(0, 0, 1, 1).data.slice(0, 3)]"
    return page.eval_on_selector(f"{figure} canvas", script)


@pytest.mark.parametrize("screen", SCREENS)
def test_playing_an_episode_reads_its_words_to_the_end(opened, screen):
    page = opened(screen=screen)
    assert words(page) == words_of(0)
    page.select_option("#speed", value="64")
    page.click("#play")
    assert page.get_attribute("#play", "aria-label") in ("Pause", "Play")
    page.wait_for_function(f"document.getElementById('step').textContent.startsWith('{LENGTH} /')")
    assert words(page) == words_of(LENGTH - 1)
    assert page.get_attribute("#play", "aria-label") == "Play"
    page.select_option("#speed", value="1")
    page.click("#play")
    assert step(page) == 0, "an episode at its end plays from the start"
    assert page.get_attribute("#play", "aria-label") == "Pause"
    page.click("#play")
    assert page.get_attribute("#play", "aria-label") == "Play"


def test_every_step_shows_what_was_recorded(opened):
    page, one = opened(), recording(LENGTH)
    gained = 0.0
    for t in range(LENGTH):
        gained += one.steps["rewards"][t]
        action = one.steps["actions"][t]
        assert step(page) == t
        assert words(page) == words_of(t)
        assert page.inner_text("#action") == ACTIONS[action]
        assert picture(page, "#view") == one.steps["observations"][t, :, 0, 0].tolist()
        assert picture(page, "#whole") == one.details["overviews"][t, 0, 0].tolist()
        bars = page.locator("#probabilities b").all_inner_texts()
        shown = [float(bar.split()[0]) / 100 for bar in bars]
        assert shown == pytest.approx(one.details["probabilities"][t], abs=0.01)
        outputs = page.locator(".track output").all_inner_texts()[:2]
        assert [float(text.replace("−", "-")) for text in outputs] == pytest.approx(
            [gained, one.steps["values"][t]], abs=0.006
        )
        page.keyboard.press("ArrowRight")
    assert step(page) == LENGTH - 1, "there is no step after the last"


def test_the_buttons_step_and_jump(opened):
    page = opened()
    for button, expected in (("forward", 1), ("forward", 2), ("back", 1), ("last", 11)):
        page.click(f"#{button}")
        assert step(page) == expected
    page.click("#first")
    assert step(page) == 0


def test_the_keys_do_what_the_buttons_do(opened):
    page = opened()
    for key, expected in (("End", 11), ("ArrowLeft", 10), ("Home", 0), ("ArrowRight", 1)):
        page.keyboard.press(key)
        assert step(page) == expected
    page.keyboard.press("Space")
    assert page.get_attribute("#play", "aria-label") == "Pause"
    page.keyboard.press("Space")
    assert page.get_attribute("#play", "aria-label") == "Play"
    page.keyboard.press("+")
    assert page.input_value("#speed") == "8"
    page.keyboard.press("-")
    page.keyboard.press("-")
    assert page.input_value("#speed") == "2"
    page.keyboard.press("n")
    page.wait_for_selector("#episodes li:nth-child(2) [aria-current=true]")
    assert page.inner_text("#step") == "1 / 5"
    page.keyboard.press("p")
    page.wait_for_selector("#episodes li:nth-child(1) [aria-current=true]")


def test_the_slider_moves_by_mouse_and_by_keys(opened):
    page = opened()
    box = page.locator("#slider").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.98, box["y"] + box["height"] / 2)
    assert step(page) == LENGTH - 1
    page.locator("#slider").focus()
    page.keyboard.press("ArrowLeft")
    assert step(page) == LENGTH - 2
    page.keyboard.press("Home")
    assert step(page) == 0
    assert page.get_attribute("#slider", "aria-valuetext") == f"step 1 of {LENGTH}"


def test_an_episode_is_chosen_from_the_list(opened):
    page = opened()
    page.keyboard.press("End")
    page.click("#episodes li:nth-child(3) button")
    page.wait_for_selector("#episodes li:nth-child(3) [aria-current=true]")
    assert page.inner_text("#step") == "1 / 1"
    assert page.locator("#episodes [aria-current=true]").count() == 1


def test_clicking_the_step_that_is_looked_back_at_goes_there(opened):
    page = opened()
    page.keyboard.press("End")
    page.select_option("#layer", index=1)
    page.select_option("#head", index=3)
    (target,) = page.locator("#targets button").all()
    assert target.inner_text().split("\n") == ["100 %", f"step {KEY_STEP + 1}, <wall>"]
    target.click()
    assert step(page) == KEY_STEP
    page.keyboard.press("End")
    page.select_option("#head", index=0)
    assert page.locator("#targets button").count() > 1


def test_the_heads_are_chosen_by_keyboard_without_stepping(opened):
    page = opened()
    page.keyboard.press("End")
    page.locator("#head").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert page.input_value("#head") == "2"
    assert step(page) == LENGTH - 1
    assert page.locator("#targets button").count() == 1


def test_every_chart_takes_to_the_step_that_is_clicked(opened):
    page = opened()
    charts = page.locator(".track canvas")
    assert charts.count() == 5
    for number in range(charts.count()):
        page.keyboard.press("Home")
        charts.nth(number).scroll_into_view_if_needed()
        width = charts.nth(number).bounding_box()["width"]
        charts.nth(number).click(position={"x": width * 7.5 / LENGTH, "y": 10})
        assert step(page) == 7


def test_a_word_leads_to_the_steps_it_was_read_at(opened):
    page = opened()
    ball = page.locator(".track button[data-word=ball]")
    visited = []
    for _ in range(4):
        ball.click()
        visited.append(step(page))
    assert visited == [2, 3, 6, 7]
    assert page.inner_text("#said").endswith("ball, key")
    page.locator("#trail button").first.click()
    assert step(page) == 6


def test_one_nearest_word_comes_with_the_entropy_of_its_retrieval(opened):
    page = opened("helm")
    page.keyboard.press("ArrowRight")
    assert words(page) == words_of(1, n_words=1)
    assert "spreads as over 10 tokens" in page.inner_text("#retrieval-note")
    assert "2.30 nats" in page.inner_text("#course")


def test_an_agent_without_language_shows_no_memory(opened):
    page = opened("cnn")
    for part in ("#retrieval", "#looks"):
        assert not page.is_visible(part)
    assert page.locator(".track").count() == 2
    assert page.is_visible("#choice")


@pytest.mark.parametrize("name", ["vectors", "blind"])
def test_an_agent_of_vectors_shows_its_numbers_and_what_actions_are_worth(opened, name):
    page, one = opened(name), of_vectors(LENGTH)
    assert page.locator("#numbers span").all_inner_texts() == ["x", "y", "number 3"]
    for t in range(LENGTH):
        shown = [
            float(text.replace("−", "-")) for text in page.locator("#numbers b").all_inner_texts()
        ]
        assert shown == pytest.approx(one.steps["observations"][t], abs=0.006)
        worth = page.locator("#probabilities b").all_inner_texts()
        values = one.details["action_values"][t]
        assert [float(text.replace("−", "-")) for text in worth] == pytest.approx(values, abs=0.006)
        assert page.inner_text("#action") == ACTIONS[values.argmax()]
        page.keyboard.press("ArrowRight")
    assert not page.is_visible("#view")
    assert page.is_visible("#whole") == (name == "vectors")
    assert "blue: the agent" in page.inner_text("body") or name == "blind"
    tracks = page.locator(".track h2").all_inner_texts()
    assert tracks[-5:-2] == ["x", "y", "Number 3"]
    assert ("Value" in tracks) == (name == "vectors")


def test_a_step_of_vectors_that_is_looked_back_at_can_be_gone_to(opened):
    page = opened("blind")
    page.keyboard.press("End")
    (target,) = page.locator("#targets button").all()
    assert target.inner_text().split("\n") == ["100 %", f"step {KEY_STEP + 1}"]
    target.click()
    assert step(page) == KEY_STEP


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("#episode=2&step=4", "4 / 5"),
        ("#step=99", f"{LENGTH} / {LENGTH}"),
        ("#episode=-1&step=x", f"1 / {LENGTH}"),
    ],
)
def test_an_address_can_name_a_step(opened, place, shown):
    page = opened(place=place)
    page.wait_for_function(f"document.getElementById('step').textContent === '{shown}'")
    assert page.inner_text("#step") == shown


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_follow_the_system_until_switched(opened, scheme):
    page = opened(color_scheme=scheme)
    ground = "getComputedStyle(document.body).backgroundColor"
    colours = [page.evaluate(ground)]
    page.click("#theme")
    colours.append(page.evaluate(ground))
    page.keyboard.press("t")
    colours.append(page.evaluate(ground))
    light, dark = "rgb(244, 244, 241)", "rgb(16, 19, 23)"
    expected = [light, dark, light] if scheme == "light" else [dark, light, dark]
    assert colours == expected


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", ["shelm", "helm", "cnn", "vectors", "blind", "goals", "many"])
def test_nothing_is_wider_than_the_screen_and_every_control_has_a_name(opened, name, screen):
    page = opened(name, screen)
    assert page.evaluate("document.documentElement.scrollWidth") == SCREENS[screen][0]
    nameless = page.evaluate(
        """[...document.querySelectorAll('button, select, input')].filter(control =>
            !control.ariaLabel && !control.innerText.trim() && !control.labels?.length).length"""
    )
    assert nameless == 0


def test_what_the_agent_is_told_in_words_follows_the_step(opened):
    page, one = opened("words"), of_words(LENGTH)
    for t in (0, LENGTH - 1):
        assert page.locator("#sentences p").all_inner_texts() == one.steps["text"][t].tolist()
        assert page.is_visible("#view")
        assert page.is_visible("#numbers")
        page.keyboard.press("End")
    assert not opened("cnn").is_visible("#texts")


def chips(page, part):
    return page.locator(f"#{part} li").all_inner_texts()


def test_goals_and_achievements_follow_the_step(opened):
    page = opened("goals", place="#step=3")
    assert page.locator("#sentences p").all_inner_texts() == ["hurry", "Not told: you see grass."]
    assert chips(page, "suggestions") == ["chop <tree>"]
    assert chips(page, "outcome") == ["do nothing"]
    page.keyboard.press("ArrowRight")
    assert chips(page, "suggestions") == ["chop <tree>", "drink water"]
    assert page.locator("#suggestions .reached").all_inner_texts() == ["chop <tree>"]
    assert chips(page, "outcome") == ["chop <tree>", "✓ chop <tree> +1.00", "★ collect wood"]
    assert (
        page.inner_text("#said")
        == f"Step 4, {page.inner_text('#action')}, chop <tree>, collect wood"
    )
    assert chips(page, "achievements") == ["collect wood · 4", "a · 10", "b · 10"]
    page.click("#achievements li:nth-child(3) button")
    assert (step(page), chips(page, "outcome")) == (9, ["do nothing", "★ a", "★ b"])


def test_a_goal_that_was_reached_without_effect_is_said_so(opened):
    page = opened("goals", place="#step=8")
    assert chips(page, "outcome") == ["do nothing", "✓ drink water +1.00", "without effect"]


def test_the_line_of_goals_and_achievements_leads_to_them(opened):
    page = opened("goals")
    goals, achievements = page.locator(".track ol button").all()
    visited = []
    for button in (goals, goals, goals, achievements, achievements):
        button.click()
        visited.append(step(page))
    assert visited == [3, 7, 3, 9, 3]
    line = page.locator(".track canvas").nth(1)
    cell = line.bounding_box()["width"] / LENGTH
    for place, expected in ((7.5 * cell + 4, 7), (9.5 * cell - 4, 9), (6.5 * cell, 6)):
        line.click(position={"x": place, "y": 10})
        assert step(page) == expected
    assert "Paid for goals so far" in page.inner_text("#course")


def test_a_page_without_goals_shows_none(opened):
    page = opened("words")
    assert not page.is_visible("#wanted")
    assert page.locator(".track ol").count() == 0
    assert "Return so far" in page.inner_text("#course")


def test_of_many_actions_the_best_are_shown_and_the_one_taken(opened):
    page, one = opened("many"), of_many_actions(LENGTH)
    for t in range(3):
        rows = page.locator("#probabilities li")
        assert rows.count() == 12
        assert page.locator("#probabilities .chosen span").all_inner_texts() == [
            page.inner_text("#action")
        ]
        first = one.details["probabilities"][t].argmax()
        assert rows.nth(0).locator("span").inner_text() == f"action {first}"
        page.keyboard.press("ArrowRight")
    assert page.inner_text("#choice-note").strip() == "The best 12 of 30."
