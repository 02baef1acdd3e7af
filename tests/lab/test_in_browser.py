"""The lab in Chromium: choose, run, watch, cancel, upload."""

import numpy as np
import pytest

from browser import complaints, emulate, set_value
from lipspline.imaging.strength import PRIOR

By = pytest.importorskip("selenium.webdriver.common.by").By
WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait


LATE_PREVIEWS = """
const now = window.fetch;
window.fetch = async (path, options) => {
  if (path === "/preview") await new Promise((go) => setTimeout(go, 3000));
  return now(path, options);
};
"""


@pytest.fixture
def window(browser, lab):
    """The lab, freshly opened, its preview shown; at the end it must not have complained."""
    emulate(browser)
    browser.get(lab.address)
    pick(browser, "image", "phantom")
    wait(browser, lambda _: "Convergence" in text(browser, "promise"))
    yield browser
    assert complaints(browser) == []


def wait(browser, condition):
    return WebDriverWait(browser, 30, poll_frequency=0.05).until(condition)


def text(browser, name):
    return browser.find_element(By.ID, name).text


def named(browser, name):
    return browser.find_element(By.NAME, name)


def pick(browser, name, value):
    wait(browser, lambda _: browser.find_elements(By.CSS_SELECTOR, f"[name={name}] option[value='{value}']"))
    browser.find_element(By.CSS_SELECTOR, f"[name={name}] option[value='{value}']").click()


def run(browser):
    browser.find_element(By.CSS_SELECTOR, "button.primary").click()


def test_a_reconstruction_arrives_and_can_be_compared(window):
    run(window)
    wait(window, lambda _: text(window, "status").startswith("Done"))
    assert window.find_element(By.ID, "iterate").get_attribute("src").startswith("data:image/png")
    assert text(window, "iterate-psnr").endswith(" dB")
    assert window.find_elements(By.CSS_SELECTOR, "#chart polyline.series")
    section = window.find_element(By.CSS_SELECTOR, "#section .case")
    set_value(window, section.find_element(By.NAME, "split"), 20)
    clip = window.execute_script(
        "return getComputedStyle(arguments[0]).clipPath", section.find_element(By.CSS_SELECTOR, ".stage .right")
    )
    assert clip == "inset(0px 0px 0px 20%)"
    assert "Convergence proven" in section.text


def test_the_bound_follows_beta(window):
    assert "Data stability ≤ 1 " in text(window, "promise")
    set_value(window, named(window, "beta"), 0.8)
    wait(window, lambda _: "No bound is claimed" in text(window, "promise"))
    set_value(window, named(window, "contraction"), 0.95)
    wait(window, lambda _: "to the only answer" in text(window, "promise"))


def test_beta_suits_the_noise_until_it_is_chosen(window):
    """By the rule of `strength`, for a file that is taken for noise 15 of 255."""
    set_value(window, named(window, "noise-mri"), 0.02)
    wait(window, lambda _: float(named(window, "beta").get_attribute("value")) == round(PRIOR * (17 * 0.02) ** 2, 2))
    set_value(window, named(window, "beta"), 0.3)
    set_value(window, named(window, "noise-mri"), 0.01)
    wait(window, lambda _: "noise 0.01 " in text(window, "summary"))
    assert float(named(window, "beta").get_attribute("value")) == 0.3


def test_the_fields_are_those_of_the_scan(window):
    assert named(window, "acceleration").is_displayed()
    assert not named(window, "angles").is_displayed()
    window.find_element(By.CSS_SELECTOR, "[name=kind][value=ct] + span").click()
    wait(window, lambda _: text(window, "direct-name") == "Filtered backprojection")
    assert named(window, "angles").is_displayed()
    assert not named(window, "acceleration").is_displayed()


def test_a_running_reconstruction_is_shown_and_can_be_cancelled(window, slow):
    run(window)
    wait(window, lambda _: text(window, "status").startswith("Step "))
    assert not window.find_element(By.CSS_SELECTOR, "button.primary").is_enabled()
    named(window, "cancel").click()
    wait(window, lambda _: text(window, "status") == "Cancelled.")
    assert window.find_element(By.CSS_SELECTOR, "button.primary").is_enabled()


def test_a_page_that_is_opened_again_finds_the_running_job(window, slow):
    run(window)
    wait(window, lambda _: text(window, "status").startswith("Step "))
    window.refresh()
    wait(window, lambda _: text(window, "status").startswith("Step "))
    named(window, "cancel").click()
    wait(window, lambda _: text(window, "status") == "Cancelled.")


def test_what_became_of_a_reconstruction_is_said_until_something_is_changed(window, slow):
    """A preview that is still under way when the job ends must not wipe it away."""
    window.execute_script(LATE_PREVIEWS)
    set_value(window, named(window, "noise-mri"), 0.02)
    run(window)
    wait(window, lambda _: text(window, "status").startswith("Step "))
    named(window, "cancel").click()
    wait(window, lambda _: text(window, "status") == "Cancelled.")
    wait(window, lambda _: "noise 0.02 " in text(window, "summary"))
    assert text(window, "status") == "Cancelled."
    set_value(window, named(window, "noise-mri"), 0.01)
    wait(window, lambda _: text(window, "status") == "")


def test_a_file_is_opened(window, tmp_path):
    np.save(tmp_path / "mine.npy", np.random.default_rng(0).random((24, 24)))
    named(window, "file").send_keys(str(tmp_path / "mine.npy"))
    wait(window, lambda _: named(window, "image").get_attribute("value").endswith(": mine.npy"))


def test_a_bad_file_is_one_sentence(browser, lab, tmp_path):
    browser.get(lab.address)
    (tmp_path / "bad.png").write_bytes(b"nothing")
    wait(browser, lambda _: browser.find_elements(By.CSS_SELECTOR, "[name=image] option"))
    named(browser, "file").send_keys(str(tmp_path / "bad.png"))
    wait(browser, lambda _: "damaged" in text(browser, "status"))
    complaints(browser)  # the browser itself notes the answer 400


@pytest.mark.parametrize("width", [360, 800, 1280])
def test_nothing_sticks_out_sideways(window, width):
    emulate(window, width)
    assert window.execute_script("return document.documentElement.scrollWidth") <= width


def test_a_page_from_elsewhere_cannot_use_the_lab(browser, lab, tmp_path):
    """A file on the disk asks for the shelf and orders a job: the browser is refused both."""
    page = tmp_path / "elsewhere.html"
    page.write_text(
        f"<script>for (const [how, path] of [['GET', 'shelf'], ['POST', 'jobs']]) fetch('{lab.address}/' + path,"
        "{method: how, mode: 'no-cors', body: how === 'POST' ? '{}' : undefined})"
        ".then((r) => r.text()).then((t) => 'read ' + t.length, () => 'refused')"
        ".then((t) => { document.title += t + ';' })</script>"
    )
    before = lab.session.job
    browser.get(page.as_uri())
    wait(browser, lambda _: browser.title.count(";") == 2)
    assert browser.title == "refused;refused;"
    assert lab.session.job is before
    complaints(browser)
