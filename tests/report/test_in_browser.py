"""The page in Chromium: it opens, it works by mouse and keyboard, and it fits on a phone and on paper."""

import re
from dataclasses import replace

import pytest

from browser import complaints, emulate, set_value
from lipspline.report import DataMisfit, reconstruction_page, write_page
from markup import HOSTILE

By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys


@pytest.fixture(scope="module")
def address(case, denoiser, tmp_path_factory):
    page = reconstruction_page([case, replace(case, title="Again")], denoiser=denoiser, command="lipspline demo")
    return write_page(tmp_path_factory.mktemp("page") / "report.html", page).as_uri()


@pytest.fixture(scope="module")
def volume_address(case, tmp_path_factory):
    cases = [replace(case, title=f"Slice {n}", number=n, stability=None) for n in range(5, 11)]
    return write_page(tmp_path_factory.mktemp("volume") / "report.html", reconstruction_page(cases)).as_uri()


@pytest.fixture
def window(browser, address):
    """The page, freshly opened; at the end it must not have complained."""
    emulate(browser)
    browser.get(address)
    yield browser
    assert complaints(browser) == []


def first(window, selector):
    return window.find_element(By.CSS_SELECTOR, f"#case-0 {selector}")


def press(window, button):
    """Click, once the page has stopped: it scrolls smoothly, and a moving button is missed."""
    window.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
    button.click()


def style(window, selector, name):
    return window.execute_script(
        "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])", selector, name
    )


def scale_of(window, selector):
    """The factor by which an image is enlarged."""
    return float(re.match(r"matrix\(([\d.]+),", style(window, selector, "transform"))[1])


def test_it_opens_and_shows_the_numbers(window, case):
    cells = window.find_elements(By.CSS_SELECTOR, "#case-0 [data-number=psnr]")
    wanted = [f"{case.quality(picture)[0]:.2f} dB" for picture in case.pictures]
    assert [cell.text for cell in cells] == wanted
    assert first(window, "[data-number=seconds]").text == "1.2 s"


def test_every_image_is_decoded(window):
    sizes = window.execute_script(
        "return [...document.querySelectorAll('img')].map((i) => [i.complete, i.naturalWidth, i.naturalHeight])"
    )
    assert len(sizes) == 14 + 4
    assert all(size == [True, 32, 24] for size in sizes)


def test_the_slider_moves_the_divide_between_the_images(window):
    set_value(window, first(window, "[name=split]"), 25)
    assert style(window, "#case-0 .stage .right", "clip-path") == "inset(0px 0px 0px 25%)"
    assert style(window, "#case-1 .stage .right", "clip-path") == "inset(0px 0px 0px 50%)"


def test_the_slider_has_a_label_and_moves_by_keys(window):
    slider = first(window, "[name=split]")
    assert slider.accessible_name == "Compare"
    slider.send_keys(Keys.ARROW_RIGHT * 10)
    assert float(slider.get_attribute("value")) == pytest.approx(51)


def test_either_side_shows_the_image_that_is_chosen(window):
    images = window.find_elements(By.CSS_SELECTOR, "#case-0 .gallery figure.grey img")
    for side, number in (("left", 0), ("right", 2)):
        first(window, f"[name={side}] option:nth-child({number + 1})").click()
        assert first(window, f".stage .{side} img").get_attribute("src") == images[number].get_attribute("src")
    assert first(window, ".tag-left").text == "Reference"


def test_all_images_of_a_case_are_enlarged_and_moved_together(window):
    set_value(window, first(window, "[name=zoom]"), 2)
    moved = {style(window, f"#case-0 {s}", "--x") for s in (".stage .left img", ".gallery figure:last-child img")}
    assert len(moved) == 1
    first(window, ".stage").send_keys(Keys.ARROW_LEFT)
    assert float(style(window, "#case-0 .gallery figure.error img", "--x")) == 10
    assert float(style(window, "#case-0 .stage .right img", "--zoom")) == 4
    assert style(window, "#case-1 .stage .right img", "--zoom") == "1"
    press(window, first(window, "[name=restart]"))
    assert float(style(window, "#case-0 .stage .right img", "--zoom")) == 1


def test_zoom_really_enlarges(browser, address):
    emulate(browser, prefers_reduced_motion="reduce")
    browser.get(address)
    set_value(browser, first(browser, "[name=zoom]"), 3)
    assert scale_of(browser, "#case-0 .gallery figure.error img") == 8
    assert style(browser, "#case-0 .stage img", "transition-duration") == "0s"


def test_an_image_cannot_be_moved_out_of_sight(window):
    set_value(window, first(window, "[name=zoom]"), 1)
    first(window, ".stage").send_keys(Keys.ARROW_RIGHT * 30)
    assert float(style(window, "#case-0 .stage .left img", "--x")) == -50


def test_the_window_of_grey_values_is_a_linear_map(window):
    """Half the width around level 0.25: slope 2, intercept 0; error maps keep their colours."""
    set_value(window, first(window, "[name=width]"), 50)
    set_value(window, first(window, "[name=level]"), 25)
    part = window.find_element(By.CSS_SELECTOR, "#window-case-0 feFuncG")
    assert (float(part.get_attribute("slope")), float(part.get_attribute("intercept"))) == (2, 0)
    assert "window-case-0" in style(window, "#case-0 .gallery figure.grey img", "filter")
    assert style(window, "#case-0 .gallery figure.error img", "filter") == "none"


def test_the_values_below_the_pointer_are_read(window, case):
    actions = pytest.importorskip("selenium.webdriver.common.action_chains").ActionChains(window)
    actions.move_to_element(first(window, ".stage")).perform()
    text = first(window, ".readout").text
    row, column = map(int, re.match(r"Row (\d+), column (\d+):", text).groups())
    shown = float(re.search(r"Reference ([\d.]+)", text)[1])
    assert shown == pytest.approx(float(case.reference[0, 0, row, column]), abs=0.005)


def test_the_thumb_of_the_slider_is_below_the_divide(window):
    """The middle of the thumb, wherever it is, to a pixel: it travels as far as the image is wide."""
    stage, slider = first(window, ".stage").rect, first(window, "[name=split]").rect
    thumb = 1.05 * 16
    assert slider["x"] + thumb / 2 == pytest.approx(stage["x"], abs=1)
    assert slider["width"] - thumb == pytest.approx(stage["width"], abs=1)


def test_the_window_that_is_shown_first_needs_no_script(window):
    part = window.find_element(By.CSS_SELECTOR, "#window-case-0 feFuncG")
    assert float(part.get_attribute("slope")) >= 1
    assert "window-case-0" in first(window, ".gallery figure.grey img").get_attribute("style")


def shown_slices(browser):
    return [one.text for one in browser.find_elements(By.CSS_SELECTOR, ".case h2") if one.is_displayed()]


def test_slices_are_leafed_through_by_slider_table_and_keys(browser, volume_address):
    emulate(browser)
    browser.get(volume_address)
    assert shown_slices(browser) == ["Slice 8"]
    set_value(browser, browser.find_element(By.NAME, "slice"), 0)
    assert shown_slices(browser) == ["Slice 5"]
    press(browser, browser.find_element(By.LINK_TEXT, "Slice 9"))
    assert shown_slices(browser) == ["Slice 9"]
    assert browser.find_element(By.CSS_SELECTOR, ".slices .current").text.startswith("Slice 9")
    browser.find_element(By.CSS_SELECTOR, "#case-4 .stage").send_keys(Keys.PAGE_DOWN)
    assert shown_slices(browser) == ["Slice 10"]
    browser.switch_to.active_element.send_keys(Keys.PAGE_DOWN)
    assert shown_slices(browser) == ["Slice 10"]
    assert complaints(browser) == []


def test_the_next_slice_is_looked_at_as_the_one_before(browser, volume_address):
    emulate(browser)
    browser.get(volume_address)
    set_value(browser, browser.find_element(By.CSS_SELECTOR, "#case-3 [name=zoom]"), 2)
    set_value(browser, browser.find_element(By.CSS_SELECTOR, "#case-3 [name=split]"), 30)
    set_value(browser, browser.find_element(By.NAME, "slice"), 4)
    assert style(browser, "#case-4 .stage .right img", "--zoom") == "4"
    assert style(browser, "#case-4 .stage .right", "clip-path") == "inset(0px 0px 0px 30%)"


@pytest.fixture(scope="module")
def full_address(case, tmp_path_factory):
    """Every column of numbers there is, long names of methods, and the name of a file as title."""
    misfit = DataMisfit(0.0312, 0.03)
    pictures = [
        replace(one, name=f"Minimum with ridge-adaptive, {k}", seconds=1234.5, misfit=misfit, held_out=misfit)
        for k, one in enumerate(case.pictures)
    ]
    slices = [replace(case, pictures=tuple(pictures), reference_measured=True, number=n) for n in (5, 6)]
    page = reconstruction_page(slices, title="a_name_without_spaces_of_forty_letters.nii")
    return write_page(tmp_path_factory.mktemp("full") / "report.html", page).as_uri()


@pytest.mark.parametrize("width", [320, 360, 390, 768, 1100, 1280, 1400])
def test_nothing_sticks_out_sideways(browser, address, volume_address, full_address, width):
    emulate(browser, width)
    for page in (address, volume_address, full_address):
        browser.get(page)
        assert browser.execute_script("return Math.max(document.documentElement.scrollWidth, innerWidth)") <= width
        cut = "return [...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth)"
        assert [one.text for one in browser.execute_script(cut)] == []


def test_dark_mode_is_dark(browser, address):
    for scheme, dark in (("light", False), ("dark", True)):
        emulate(browser, prefers_color_scheme=scheme)
        browser.get(address)
        ground = sum(map(int, re.findall(r"\d+", style(browser, "body", "background-color"))[:3])) / 3
        assert (ground < 60) == dark


def test_on_paper_nothing_is_hidden_and_no_control_is_left(window):
    emulate(window, media="print")
    window.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert style(window, "#case-0 .viewer", "display") == "none"
    assert style(window, "#case-0 .controls", "display") == "none"
    assert window.find_elements(By.CSS_SELECTOR, "details:not([open])") == []
    window.execute_script("dispatchEvent(new Event('afterprint'))")
    assert len(window.find_elements(By.CSS_SELECTOR, "details:not([open])")) == 3


def test_a_picture_can_be_taken(window, tmp_path):
    emulate(window)
    assert window.save_screenshot(str(tmp_path / "page.png"))
    assert (tmp_path / "page.png").stat().st_size > 20_000


def test_hostile_names_run_no_code(browser, case, tmp_path):
    """Not even if they reached the page: its policy allows one script only."""
    emulate(browser)
    pictures = tuple(replace(p, name=f"{p.name} {HOSTILE[1]}") for p in case.pictures)
    page = reconstruction_page([replace(case, title=HOSTILE[0], pictures=pictures)], title=HOSTILE[0])
    browser.get(write_page(tmp_path / "hostile.html", page).as_uri())
    assert browser.find_element(By.TAG_NAME, "h1").text == HOSTILE[0]
    assert complaints(browser) == []
    broken = page.replace("</main>", "<script>document.title = 'taken'</script></main>")
    browser.get(write_page(tmp_path / "broken.html", broken).as_uri())
    assert browser.title != "taken"
    assert any("Content Security Policy" in message for message in complaints(browser))
