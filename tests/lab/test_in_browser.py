"""The lab in Chromium: choose, run, watch, cancel, upload."""

import numpy as np
import pytest

from browser import complaints, emulate, set_value
from lipspline.imaging.strength import PRIOR

By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait


LATE_PREVIEWS = """
const now = window.fetch;
window.fetch = async (path, options) => {
  if (path === "/preview") await new Promise((go) => setTimeout(go, 3000));
  return now(path, options);
};
"""


LATE_JOBS = """
const Source = window.EventSource;
window.EventSource = function (path) {
  const late = new EventTarget();
  setTimeout(() => {
    const events = new Source(path);
    late.close = () => events.close();
    for (const kind of ["step", "image", "done", "cancelled"]) {
      events.addEventListener(kind, (event) => late.dispatchEvent(new MessageEvent(kind, { data: event.data })));
    }
  }, 1000);
  return late;
};
"""


@pytest.fixture
def window(browser, lab):
    """The lab, freshly opened, its preview shown; at the end it must not have complained."""
    lab.session.result = None  # of another test, which the page would show again
    emulate(browser)
    browser.get(lab.address)
    pick(browser, "image", "phantom")
    browser.find_element(By.CSS_SELECTOR, "[name=kind][value=mri] + span").click()
    wait(browser, lambda _: "Convergence" in text(browser, "promise") and "MRI" in text(browser, "summary"))
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
    """Click, once the page has stopped: it scrolls smoothly, and a moving button is missed."""
    button = browser.find_element(By.CSS_SELECTOR, "button.primary")
    browser.execute_script("scrollTo({top: 0, behavior: 'instant'})")
    button.click()


def press(browser, *keys):
    for key in keys:
        browser.switch_to.active_element.send_keys(key)


def status_line(browser):
    return browser.find_element(By.ID, "status")


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
    """By the rule of `strength`, for a file that is taken for noise 15/255."""
    set_value(window, named(window, "noise-mri"), 0.02)
    wait(window, lambda _: float(named(window, "beta").get_attribute("value")) == round(PRIOR * (17 * 0.02) ** 2, 2))
    set_value(window, named(window, "beta"), 0.3)
    set_value(window, named(window, "noise-mri"), 0.01)
    wait(window, lambda _: "noise 0.01 " in text(window, "summary"))
    assert float(named(window, "beta").get_attribute("value")) == 0.3


def test_the_kind_of_scan_is_that_which_suits_the_image(window):
    pick(window, "image", "head")
    wait(window, lambda _: named(window, "acceleration").is_displayed())
    pick(window, "image", "phantom")
    wait(window, lambda _: named(window, "angles").is_displayed())


def test_an_energy_is_chosen_made_stronger_and_compared_with_a_denoiser(window):
    run(window)
    wait(window, lambda _: text(window, "status").startswith("Done"))
    assert named(window, "beta").is_displayed()
    pick(window, "model", "tv")
    wait(window, lambda _: "one answer" in text(window, "promise"))
    assert text(window, "about") == "total variation, convex."
    assert not named(window, "beta").is_displayed()
    assert window.find_element(By.ID, "stale").is_displayed()
    set_value(window, named(window, "strength"), 1)
    wait(window, lambda _: "× 2" in text(window, "chosen"))
    run(window)
    wait(window, lambda _: text(window, "status").startswith("Done"))
    names = [cell.text for cell in window.find_elements(By.CSS_SELECTOR, "#section .numbers tbody th")]
    assert names[-2].startswith("small, β = ")
    assert names[-1] == "tv, strength × 2"
    assert "Distance to the answer" in window.find_element(By.CSS_SELECTOR, "#section .certificates").text
    window.execute_script("arguments[0].click()", named(window, "automatic"))
    wait(window, lambda _: "× 2" not in text(window, "chosen"))
    assert window.find_element(By.ID, "stale").is_displayed()


def test_everything_can_be_done_with_the_keyboard(window):
    """From the list of priors, by Tab and arrows, to a result, the way back to automatic, and a cancelled run."""
    window.execute_script("arguments[0].focus()", named(window, "model"))
    press(window, "t")
    wait(window, lambda _: "one answer" in text(window, "promise"))
    press(window, Keys.TAB, Keys.ARROW_RIGHT)
    wait(window, lambda _: "× 1.19" in text(window, "chosen"))
    press(window, Keys.ENTER)
    wait(window, lambda _: text(window, "status").startswith("Done"))
    press(window, Keys.TAB)
    assert window.switch_to.active_element.get_attribute("name") == "automatic"
    press(window, Keys.ENTER)
    wait(window, lambda _: "× 1.19" not in text(window, "chosen"))


def test_the_progress_is_in_view_while_it_runs(window, slow):
    """On a desktop and on a phone, wherever the settings are scrolled to."""
    for width in (1280, 390):
        emulate(window, width)
        run(window)
        wait(window, lambda _: text(window, "status").startswith("Step "))
        place = window.execute_script("return arguments[0].getBoundingClientRect().bottom", status_line(window))
        assert place <= window.execute_script("return innerHeight")
        named(window, "cancel").click()
        wait(window, lambda _: text(window, "status") == "Cancelled.")


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


def test_a_result_is_marked_when_the_settings_change_and_no_longer_when_they_are_back(window):
    run(window)
    wait(window, lambda _: text(window, "status").startswith("Done"))
    note = window.find_element(By.ID, "stale")
    assert not note.is_displayed()
    set_value(window, named(window, "beta"), 0.4)
    assert note.is_displayed()
    window.execute_script("arguments[0].click()", named(window, "automatic"))
    assert not note.is_displayed()


def test_an_image_of_other_settings_is_never_shown_as_that_of_these(window, slow):
    """Neither after a change, nor while the next one is still to come, nor when that is cancelled."""
    run(window)
    wait(window, lambda _: text(window, "status").startswith("Step 2"))
    named(window, "cancel").click()
    wait(window, lambda _: text(window, "status") == "Cancelled.")
    note = window.find_element(By.ID, "iterate-note")
    assert window.find_element(By.ID, "iterate").is_displayed()
    assert not note.is_displayed()
    set_value(window, named(window, "noise-mri"), 0.03)
    assert note.is_displayed()
    window.execute_script(LATE_JOBS)
    run(window)
    wait(window, lambda _: text(window, "status") == "Running …")
    assert not window.find_element(By.ID, "iterate").is_displayed()
    wait(window, lambda _: text(window, "status").startswith("Step "))
    named(window, "cancel").click()
    wait(window, lambda _: text(window, "status") == "Cancelled.")


def test_after_a_run_the_promise_has_the_strength_that_was_used(window):
    """It is refined by measurements held out, which takes too long for a preview."""
    window.find_element(By.CSS_SELECTOR, "[name=kind][value=ct] + span").click()
    pick(window, "model", "tv")
    wait(window, lambda _: "one answer" in text(window, "promise"))
    run(window)
    wait(window, lambda _: text(window, "status").startswith("Done"))
    wait(window, lambda _: "held out" in text(window, "chosen"))
    value = window.find_element(By.XPATH, "//*[@id='section']//th[.='Strength λ']/following-sibling::td").text
    assert f"Strength λ {value} " in text(window, "promise").replace("\n", " ")


def test_results_on_the_same_data_are_shown_side_by_side(window):
    for beta in (0.2, 0.4):
        set_value(window, named(window, "beta"), beta)
        run(window)
        wait(window, lambda _: text(window, "status").startswith("Done"))
        set_value(window, named(window, "contraction"), 1)
    names = [cell.text for cell in window.find_elements(By.CSS_SELECTOR, "#section .numbers tbody th")]
    assert names[-2:] == ["small, β = 0.2", "small, β = 0.4"]


def test_there_is_a_way_back_to_automatic(window):
    suited = named(window, "beta").get_attribute("value")
    assert not named(window, "automatic").is_displayed()
    set_value(window, named(window, "beta"), 0.45)
    window.execute_script("arguments[0].click()", named(window, "automatic"))
    wait(window, lambda _: named(window, "beta").get_attribute("value") == suited)
    assert not named(window, "automatic").is_displayed()


def opened_file(window, path):
    named(window, "file").send_keys(str(path))
    wait(window, lambda _: named(window, "image").get_attribute("value").endswith(f": {path.name}"))


def test_a_slice_is_chosen(window, tmp_path):
    np.save(tmp_path / "volume.npy", np.random.default_rng(0).random((5, 24, 24)))
    assert not named(window, "slice").is_displayed()
    opened_file(window, tmp_path / "volume.npy")
    assert named(window, "slice").get_attribute("value") == "2"
    wait(window, lambda _: named(window, "slice").is_displayed())
    first = window.find_element(By.ID, "reference").get_attribute("src")
    set_value(window, named(window, "slice"), 4)
    wait(window, lambda _: window.find_element(By.ID, "reference").get_attribute("src") != first)


def test_k_space_is_reconstructed_as_it_was_measured(window, tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "k.npy", rng.normal(size=(24, 24)) + 1j * rng.normal(size=(24, 24)))
    opened_file(window, tmp_path / "k.npy")
    wait(window, lambda _: "100 % of k-space measured" in text(window, "summary"))
    assert not window.find_element(By.CSS_SELECTOR, ".choice").is_displayed()
    assert not named(window, "noise-mri").is_displayed()
    run(window)
    wait(window, lambda _: text(window, "status").startswith("Done"))


def test_a_sinogram_is_reconstructed_as_it_was_measured(window, tmp_path):
    angles = np.linspace(0, np.pi, 20, endpoint=False)[:, None]
    across = np.arange(31)[None] - 15
    np.save(tmp_path / "s.npy", np.sqrt(np.clip(64 - (across - 3 * np.cos(angles)) ** 2, 0, None)))
    pick(window, "holds", "sinograms")
    opened_file(window, tmp_path / "s.npy")
    wait(
        window,
        lambda _: "CT, 20 angles taken to be evenly spread over 180 degrees, 31 detectors" in text(window, "summary"),
    )
    assert not named(window, "angles").is_displayed()


def test_a_page_that_is_opened_again_shows_the_result_and_its_settings(window):
    set_value(window, named(window, "noise-mri"), 0.02)
    pick(window, "model", "small")
    set_value(window, named(window, "beta"), 0.31)
    set_value(window, named(window, "strength"), 1)
    run(window)
    wait(window, lambda _: text(window, "status").startswith("Done"))
    names = ("image", "noise-mri", "model", "beta", "strength")
    before = [named(window, name).get_attribute("value") for name in names]
    shown = text(window, "section")
    window.refresh()
    wait(window, lambda _: window.find_element(By.ID, "section").is_displayed())
    wait(window, lambda _: "noise 0.02 added" in text(window, "summary"))
    assert [named(window, name).get_attribute("value") for name in names] == before
    assert text(window, "section") == shown
    assert window.find_element(By.ID, "iterate").is_displayed()
    assert window.find_elements(By.CSS_SELECTOR, "#chart svg")
    assert not window.find_element(By.ID, "stale").is_displayed()
    set_value(window, named(window, "noise-mri"), 0.03)
    assert window.find_element(By.ID, "stale").is_displayed()


def test_the_page_of_a_result_whose_file_is_gone_says_that_the_settings_are_others(window, lab, tmp_path):
    np.save(tmp_path / "gone.npy", np.random.default_rng(0).random((24, 24)))
    opened_file(window, tmp_path / "gone.npy")
    pick(window, "model", "small")
    run(window)
    wait(window, lambda _: text(window, "status").startswith("Done"))
    del lab.session.catalogue._sources[named(window, "image").get_attribute("value")]
    window.refresh()
    wait(window, lambda _: window.find_element(By.ID, "section").is_displayed())
    wait(window, lambda _: window.find_element(By.ID, "stale").is_displayed())
