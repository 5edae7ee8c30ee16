"""A reader commits to an answer, comes back, and takes it back; what is right is read from the page's source."""

import json
import re
from pathlib import Path

import check_site
import pytest
import questions

ROOT = Path(__file__).parents[2]
ASKED = {
    path.stem: questions.predictions(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "book").glob("*.md"))
    if (check_site.SITE / f"{path.stem}.html").exists()
}
ASKED = {slug: asked for slug, asked in ASKED.items() if asked}
SLUG = "01-roofline"
FIRST, SECOND = ASKED[SLUG][:2]
ADDRESSES = {"server": f"{SLUG}.html", "file": (check_site.SITE / f"{SLUG}.html").as_uri()}


def box_of(page, asked):
    return page.locator(f"#predict-{asked.name}")


def label(asked, right):
    return next(choice.label for choice in asked.choices if choice.right == right)


def commit(box, text):
    box.get_by_role("radio", name=text, exact=True).check()
    box.get_by_role("button", name="Commit").click()


def is_asked(box):
    """Tell whether a question waits for an answer: nothing of one shows."""
    return (
        box.get_by_role("radio").first.is_visible()
        and not box.locator(".predict-verdict").is_visible()
        and not any(each.is_visible() for each in box.locator("details").all())
    )


def test_there_are_questions():
    assert len(ASKED) >= 6 and all(len(asked) >= 2 for slug, asked in ASKED.items() if slug[:2].isdigit())


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_choice_survives_a_reload_and_leaves_the_page_by_no_way(page_at, address):
    page = page_at(ADDRESSES[address])
    asked, wrong, right = FIRST, label(FIRST, False), label(SECOND, True)
    assert is_asked(box_of(page, asked))
    page.wait_for_load_state("networkidle")
    sent = []
    page.on("request", lambda request: sent.append(request.url))
    commit(box_of(page, asked), wrong)
    commit(box_of(page, SECOND), right)
    page.wait_for_timeout(500)
    assert sent == [], "a choice makes no request"

    before = page.url
    page.reload(wait_until="load")
    assert page.url == before and page.context.cookies() == []
    for asked, chosen in ((FIRST, wrong), (SECOND, right)):
        box = box_of(page, asked)
        assert f"You committed to “{chosen}”." in box.locator(".predict-said").inner_text()
        assert "refuses" not in box.locator(".predict-said").inner_text()
        opened = box.locator("details[open]")
        assert opened.count() == 1 and opened.locator("summary").inner_text() == chosen
    # Nothing else is kept, and nothing that tells who chose.
    kept = page.evaluate("() => Object.fromEntries(Object.entries(localStorage))")
    ours = {key: value for key, value in kept.items() if key.startswith("across-the-ridge:")}
    assert ours == {
        f"across-the-ridge:predict-{FIRST.name}": wrong,
        f"across-the-ridge:predict-{SECOND.name}": right,
    }

    box_of(page, FIRST).get_by_role("button", name="Take it back").click()
    assert is_asked(box_of(page, FIRST))
    page.reload(wait_until="load")
    assert is_asked(box_of(page, FIRST)), "what was taken back stays so"
    assert not is_asked(box_of(page, SECOND)), "and the other choice stays, too"


@pytest.mark.parametrize("slug", ASKED)
def test_each_choice_of_each_question_is_answered(page_at, slug):
    page = page_at(f"{slug}.html")
    assert page.locator(".predict").count() == len(ASKED[slug])
    for asked in ASKED[slug]:
        box = box_of(page, asked)
        offered = box.get_by_role("radio").evaluate_all("radios => radios.map(radio => radio.value)")
        assert offered == [choice.label for choice in asked.choices]
        for choice in asked.choices:
            commit(box, choice.label)
            assert ("That is right." in box.locator(".predict-said").inner_text()) == choice.right
            opened = box.locator("details[open]")
            assert opened.locator("summary").inner_text() == choice.label
            told = opened.locator("p").first.inner_text()
            assert told.startswith("Right." if choice.right else "Not so.")
            # The other reasons are one click away.
            assert box.locator("summary").count() == len(asked.choices)
            assert all(each.is_visible() for each in box.locator("summary").all())
            box.get_by_role("button", name="Take it back").click()
            assert is_asked(box)


def test_the_keyboard_is_enough_and_sees_where_it_is(page_at):
    page = page_at(f"{SLUG}.html")
    box = box_of(page, FIRST)
    radios, button = box.get_by_role("radio"), box.get_by_role("button", name="Commit")
    focused = "() => document.activeElement.closest('.predict')?.id + ' ' + document.activeElement.tagName"
    outline = "() => getComputedStyle(document.activeElement).outlineStyle"
    here = f"predict-{FIRST.name}"
    box.scroll_into_view_if_needed()
    box.evaluate("box => { box.tabIndex = -1; box.focus(); }")  # a reader has tabbed to what stands before it
    assert button.is_disabled(), "nothing is chosen yet"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == f"{here} INPUT" and page.evaluate(outline) == "solid"
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    assert radios.nth(1).is_checked()
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == f"{here} BUTTON" and page.evaluate(outline) == "solid"
    page.keyboard.press("Enter")
    # The button is gone, so the focus goes to what it has brought.
    assert page.evaluate("() => document.activeElement.textContent").startswith("You committed to")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Take it back"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == f"{here} SUMMARY" and page.evaluate(outline) == "solid"
    assert box.locator("details").first.get_attribute("open") is None
    page.keyboard.press("Enter")
    assert box.locator("details").first.get_attribute("open") is not None
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert is_asked(box) and page.evaluate(focused) == f"{here} INPUT"


def test_roles_and_names(page_at):
    page = page_at(f"{SLUG}.html")
    group = box_of(page, FIRST).get_by_role("group", name="Commit to one answer")
    assert group.get_by_role("radio").count() == len(FIRST.choices)
    described = group.get_attribute("aria-describedby")
    question = page.locator(f"#{described}").inner_text()
    assert question.startswith("Predict. ") and question.removeprefix("Predict. ")[:20] == FIRST.question[:20]
    names = page.locator(".predict input").evaluate_all("radios => [...new Set(radios.map(radio => radio.name))]")
    assert len(names) == len(ASKED[SLUG]), "a choice here unchecks none there"


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_answered_questions_are_accessible_and_fit(page_at, violations, pictures, look):
    page = page_at(f"{SLUG}.html", width=390 if look == "phone" else 1280, dark=look == "dark")
    for number, asked in enumerate(ASKED[SLUG]):
        commit(box_of(page, asked), label(asked, number % 2 == 0))
    page.wait_for_timeout(300)
    assert violations(page) == []
    width = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0
    for asked, state in ((FIRST, "right"), (SECOND, "wrong")):
        box_of(page, asked).screenshot(path=pictures / f"predict-{state}-{look}.png")
    # Words and edge both tell right from wrong, and the two edges differ.
    colours = page.locator("details[open].predict-choice").evaluate_all(
        "choices => choices.map(choice => getComputedStyle(choice).borderLeftColor)"
    )
    assert colours[0] != colours[1]


def test_without_javascript_each_reason_unfolds(page_at):
    page = page_at(f"{SLUG}.html", js=False)
    for asked in ASKED[SLUG]:
        box = box_of(page, asked)
        assert box.locator("form").count() == 0
        for choice, each in zip(asked.choices, box.locator("details").all(), strict=True):
            reason = each.locator("p").first
            assert not reason.is_visible()
            each.locator("summary").click()
            assert reason.is_visible() and reason.inner_text().startswith("Right." if choice.right else "Not so.")


def test_a_choice_that_is_offered_no_more_is_not_shown(page_at):
    page = page_at(f"{SLUG}.html")
    key = json.dumps(f"across-the-ridge:predict-{FIRST.name}")
    page.evaluate(f"() => localStorage.setItem({key}, 'an answer of the last edition')")
    page.reload(wait_until="load")
    assert is_asked(box_of(page, FIRST))


def test_where_storage_is_refused_a_choice_lasts_as_long_as_the_page(browser, site_url):
    """A sandboxed frame has no storage: the browser throws when it is asked for."""
    page = browser.new_page()
    page.goto(f"{site_url}/search.html")
    page.evaluate(
        """url => {
          const frame = Object.assign(document.createElement('iframe'), {src: url, width: 900, height: 900});
          frame.setAttribute('sandbox', 'allow-scripts allow-forms');
          document.body.replaceChildren(frame);
        }""",
        f"{site_url}/{SLUG}.html",
    )
    frame = page.frame_locator("iframe")
    box = frame.locator(f"#predict-{FIRST.name}")
    box.get_by_role("radio").first.wait_for()
    refused = "() => { try { localStorage; return false } catch { return true } }"
    assert page.frames[1].evaluate(refused), "the frame was to have no storage"
    commit(box, label(FIRST, True))
    said = box.locator(".predict-said").inner_text()
    assert re.search(r"That is right\. This browser refuses to keep it", said)
    box.get_by_role("button", name="Take it back").click()
    assert is_asked(box)
    page.close()
