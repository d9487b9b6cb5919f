"""The episode page in a real browser: every control, by mouse and by keyboard."""

import shutil

import pytest

from analysis.page import EpisodePage
from tests import recordings

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LENGTH = 12
SCREENS = {"laptop": (1400, 900), "phone": (390, 844)}
EXPLAINED = (["x", "y"], "blue: the agent")
PAGES = {  # the episodes, the actions, the names of numbers and colours
    "shelm": (
        [recordings.recording(n, seed) for seed, n in enumerate((LENGTH, 5, 1))],
        recordings.ACTIONS,
    ),
    "helm": ([recordings.recording(LENGTH, n_words=1)], recordings.ACTIONS),
    "cnn": ([recordings.recording(LENGTH, n_words=0, n_layers=0)], recordings.ACTIONS),
    "vectors": ([recordings.of_vectors(LENGTH)], recordings.ACTIONS, *EXPLAINED),
    "blind": ([recordings.of_vectors(LENGTH, has_overviews=False)], recordings.ACTIONS, *EXPLAINED),
    "steered": ([recordings.of_vectors(LENGTH, n_numbers_given=2)], ["turn", "push"], *EXPLAINED),
    "words": ([recordings.of_words(LENGTH)], recordings.ACTIONS),
    "goals": ([recordings.of_goals(LENGTH)], recordings.ACTIONS),
    "lstm": (2 * [recordings.recording(LENGTH, n_words=0, n_layers=0)], recordings.ACTIONS),
    "gpt": (2 * [recordings.recording(LENGTH, n_words=0)], recordings.ACTIONS),
    "many": ([recordings.of_many_actions(LENGTH)], [f"action {n}" for n in range(30)]),
}


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
    folder = tmp_path_factory.mktemp("pages")
    for name, (episodes, *explained) in PAGES.items():
        page = EpisodePage(f"{name} on a task", *explained)
        for number, one in enumerate(episodes):
            # Of one step less than the episode has, which a limit may cut off.
            is_salient = name in ("lstm", "gpt") and number == 0
            page.add(one, recordings.saliency(LENGTH - 1) if is_salient else None)
        page.write(folder / f"{name}.html", {"return": "0.500 ± 0.000"})
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


def texts(page, selector):
    return page.locator(selector).all_inner_texts()


def numbers(page, selector):
    shown = filter(None, texts(page, selector))
    return [float(text.split()[0].replace("−", "-")) for text in shown]


def words_of(t, n_words=2):
    return [recordings.VOCABULARY[(t + k) % 4] for k in range(n_words)]


def picture(page, figure):
    """Return the colour in the upper left corner of a picture."""
    script = "c => [...c.getContext('2d').getImageData(0, 0, 1, 1).data.slice(0, 3)]"
    return page.eval_on_selector(f"{figure} canvas", script)


@pytest.mark.slow
def test_playing_an_episode_reads_its_words_to_the_end(opened):
    page = opened()
    assert texts(page, "#words .word") == words_of(0)
    page.select_option("#speed", value="64")
    page.click("#play")
    page.wait_for_function(f"document.getElementById('step').textContent.startsWith('{LENGTH} /')")
    assert texts(page, "#words .word") == words_of(LENGTH - 1)
    page.select_option("#speed", value="1")
    for state in ("Pause", "Play", "Pause"):
        page.keyboard.press("Space")
        assert page.get_attribute("#play", "aria-label") == state
    assert step(page) < 3, "an episode at its end plays from the start"


@pytest.mark.slow
def test_every_step_shows_what_was_recorded(opened):
    page, one = opened(), recordings.recording(LENGTH)
    gained = one.steps["rewards"].cumsum()
    for t in range(LENGTH):
        assert step(page) == t
        assert texts(page, "#words .word") == words_of(t)
        assert page.inner_text("#action") == recordings.ACTIONS[one.steps["actions"][t]]
        assert picture(page, "#view") == one.steps["observations"][t, :, 0, 0].tolist()
        assert picture(page, "#whole") == one.details["overviews"][t, 0, 0].tolist()
        percents = 100 * one.details["probabilities"][t]
        assert numbers(page, "#probabilities b") == pytest.approx(percents, abs=1)
        course = [gained[t], one.steps["values"][t]]
        assert numbers(page, ".track output")[:2] == pytest.approx(course, abs=0.006)
        page.keyboard.press("ArrowRight")
    assert step(page) == LENGTH - 1, "there is no step after the last"


PRESSED = ["End 11", "ArrowLeft 10", "Home 0", "ArrowRight 1", "ArrowRight 2"]
CLICKED = ["#forward 3", "#forward 4", "#back 3", "#last 11", "#first 0"]


@pytest.mark.slow
def test_buttons_keys_and_slider_step_and_jump(opened):
    page = opened()
    for line in (*PRESSED, *CLICKED):
        name, expected = line.split()
        page.click(name) if name.startswith("#") else page.keyboard.press(name)
        assert step(page) == int(expected), line
    for key, expected in (("+", "8"), ("-", "4"), ("-", "2")):
        page.keyboard.press(key)
        assert page.input_value("#speed") == expected
    box = page.locator("#slider").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.98, box["y"] + box["height"] / 2)
    assert step(page) == LENGTH - 1
    page.locator("#slider").focus()
    for key, expected in (("ArrowLeft", LENGTH - 2), ("Home", 0)):
        page.keyboard.press(key)
        assert step(page) == expected
    assert page.get_attribute("#slider", "aria-valuetext") == f"step 1 of {LENGTH}"
    page.click("#episodes li:nth-child(3) button")
    for key, number, length in (("", 3, 1), ("p", 2, 5), ("p", 1, LENGTH), ("n", 2, 5)):
        if key:
            page.keyboard.press(key)
        page.wait_for_selector(f"#episodes li:nth-child({number}) [aria-current=true]")
        assert page.inner_text("#step") == f"1 / {length}"
    assert page.locator("#episodes [aria-current=true]").count() == 1


@pytest.mark.slow
def test_clicking_the_step_that_is_looked_back_at_goes_there(opened):
    page = opened("blind", place=f"#step={LENGTH}")  # without words and pictures
    assert texts(page, "#targets button") == [f"100 %\nstep {recordings.KEY_STEP + 1}"]
    page = opened(place=f"#step={LENGTH}")
    page.select_option("#layer", index=1)
    page.select_option("#head", index=0)
    assert page.locator("#targets button").count() > 1
    page.locator("#head").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert page.input_value("#head") == "2"
    assert step(page) == LENGTH - 1
    (target,) = page.locator("#targets button").all()
    assert target.inner_text().split("\n") == ["100 %", f"step {recordings.KEY_STEP + 1}, <wall>"]
    target.click()
    assert step(page) == recordings.KEY_STEP


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "gpt"])
def test_the_saliency_stands_beside_attention_or_alone(opened, name):
    page = opened(name, place=f"#step={LENGTH - 1}")
    if name == "gpt":
        assert page.is_visible("#head")
        assert not page.is_visible("#looks-note")
        assert "This step looks at" in texts(page, ".track h2")
        page.select_option("#layer", label="saliency")
    assert not page.is_visible("#head")
    assert "gradient" in page.inner_text("#looks-note")
    assert texts(page, ".track h2")[-2:] == [
        "This value depends on",
        "Every value (down) depends on (across)",
    ]
    (target,) = page.locator("#targets button").all()
    assert target.inner_text().split("\n") == ["100 %", f"step {recordings.KEY_STEP + 1}"]
    assert texts(page, "#targets .note") == ["0.0 % at itself"]
    page.keyboard.press("End")
    assert page.locator("#targets button").count() == 0
    target = page.locator("#targets")
    assert target.inner_text() == "0.0 % at itself"
    page.locator("#episodes button").last.click()  # the second episode has no saliency
    page.wait_for_function("!document.querySelector('#looks-note').checkVisibility()")
    assert page.is_visible("#looks") == (name == "gpt")
    assert ("This step looks at" in texts(page, ".track h2")) == (name == "gpt")


def visited(page, buttons):
    """Return the steps that clicks on buttons lead to."""
    found = []
    for button in buttons:
        button.click()
        found.append(step(page))
    return found


@pytest.mark.slow
def test_a_word_leads_to_the_steps_it_was_read_at(opened):
    page = opened()
    assert visited(page, [page.locator(".track button[data-word=ball]")] * 4) == [2, 3, 6, 7]
    assert page.inner_text("#said").endswith("ball, key")
    assert visited(page, [page.locator("#trail button").first]) == [6]
    page = opened("helm", place="#step=2")  # of one word a step
    assert texts(page, "#words .word") == words_of(1, n_words=1)
    assert "spreads as over 10 tokens" in page.inner_text("#retrieval-note")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vectors", "blind"])
def test_an_agent_of_vectors_shows_its_numbers_and_what_actions_are_worth(opened, name):
    page, one = opened(name), PAGES[name][0][0]
    assert texts(page, "#numbers span") == ["x", "y", "number 3"]
    for t in range(LENGTH):
        shown, values = one.steps["observations"][t], one.details["action_values"][t]
        assert numbers(page, "#numbers b") == pytest.approx(shown, abs=0.006)
        assert numbers(page, "#probabilities b") == pytest.approx(values, abs=0.006)
        assert page.inner_text("#action") == recordings.ACTIONS[values.argmax()]
        page.keyboard.press("ArrowRight")
    assert not page.is_visible("#view")
    assert page.is_visible("#whole") == (name == "vectors")
    assert "blue: the agent" in page.inner_text("body") or name == "blind"
    tracks = texts(page, ".track h2")
    assert tracks[-5:-2] == ["x", "y", "Number 3"]
    assert ("Value" in tracks) == (name == "vectors")


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_screen_and_every_control_has_a_name(opened, name):
    for screen, (width, _) in SCREENS.items():
        page = opened(name, screen)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        nameless = page.evaluate(
            """[...document.querySelectorAll('button, select, input')].filter(control =>
            !control.ariaLabel && !control.innerText.trim() && !control.labels?.length).length"""
        )
        assert nameless == 0


HIDDEN = {  # parts that a page does not show
    "words": ("#wanted", "#retrieval", "#looks"),
    "cnn": ("#texts", "#retrieval", "#looks", "#numbers"),
    "vectors": ("#view", "#texts", "#retrieval"),
}


@pytest.mark.slow
def test_the_numbers_of_a_continuous_action_stand_beside_their_names(opened):
    page, one = opened("steered"), PAGES["steered"][0][0]
    for t in range(LENGTH):
        given = one.steps["actions"][t]
        assert page.inner_text("#action") == ", ".join(f"{number:.2f}" for number in given)
        assert texts(page, "#probabilities li span:first-child") == ["turn", "push"]
        assert numbers(page, "#probabilities b") == pytest.approx(given, abs=0.006)
        assert not texts(page, "#probabilities .chosen span")
        page.keyboard.press("ArrowRight")


@pytest.mark.slow
def test_a_page_shows_the_parts_that_its_agent_has(opened):
    for name, hidden in HIDDEN.items():
        page = opened(name)
        assert [part for part in hidden if page.is_visible(part)] == []
        others = {part for parts in HIDDEN.values() for part in parts} - {"#wanted", *hidden}
        assert page.is_visible("#choice")
        assert name == "cnn" or any(map(page.is_visible, others))
    page, (one,) = opened("words"), PAGES["words"][0]
    for t in (0, LENGTH - 1):
        assert texts(page, "#sentences p") == one.steps["text"][t].tolist()
        page.keyboard.press("End")
    page, (one,) = opened("many"), PAGES["many"][0]  # of many actions the best are shown
    for t in range(3):
        shown = texts(page, "#probabilities li span:first-child")
        assert texts(page, "#probabilities .chosen span") == [page.inner_text("#action")]
        assert shown[0] == f"action {one.details['probabilities'][t].argmax()}"
        assert len(shown) == 12
        page.keyboard.press("ArrowRight")


@pytest.mark.slow
def test_goals_and_achievements_follow_the_step_and_lead_to_it(opened):
    page = opened("goals", place="#step=3")
    assert texts(page, "#sentences p") == ["hurry", "Not told: you see grass."]
    assert texts(page, "#suggestions li") == ["chop <tree>"]
    assert texts(page, "#outcome li") == ["do nothing"]
    page.keyboard.press("ArrowRight")
    assert texts(page, "#suggestions li") == ["chop <tree>", "drink water"]
    assert texts(page, "#suggestions .reached") == ["chop <tree>"]
    assert texts(page, "#outcome li") == ["chop <tree>", "✓ chop <tree> +1.00", "★ collect wood"]
    action = page.inner_text("#action")
    assert page.inner_text("#said") == f"Step 4, {action}, chop <tree>, collect wood"
    assert texts(page, "#achievements li") == ["collect wood · 4", "a · 10", "b · 10"]
    assert visited(page, page.locator("#achievements li:nth-child(3) button").all()) == [9]
    assert texts(page, "#outcome li") == ["do nothing", "★ a", "★ b"]
    goals, achievements = page.locator(".track ol button").all()
    page.keyboard.press("Home")
    buttons = (goals, goals, goals, achievements, achievements)
    assert visited(page, buttons) == [3, 7, 3, 9, 3]
    line = page.locator(".track canvas").nth(1)
    line.click(position={"x": line.bounding_box()["width"] * 7.5 / LENGTH + 4, "y": 10})
    assert step(page) == 7
    done = ["do nothing", "✓ drink water +1.00", "without effect"]
    assert texts(page, "#outcome li") == done
    assert "Paid for goals so far" in page.inner_text("#course")
