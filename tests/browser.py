"""A headless Chromium for tests that look at pages; where there is none, they are skipped with the reason."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@contextmanager
def chromium() -> Iterator:
    """A browser with a profile of its own."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (extra `dev`)")
    from selenium.webdriver.chrome.service import Service

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("there is no chromium with chromedriver on this machine")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options=options, service=Service(driver))
        browser.set_window_size(1280, 900)
        try:
            yield browser
        finally:
            browser.quit()


def complaints(browser) -> list[str]:
    """What the page has written to the console since the last time this was asked."""
    return [entry["message"] for entry in browser.get_log("browser")]


def emulate(browser, width: int = 1280, *, media: str = "", **features: str) -> None:
    """Look at the page with a screen of this width, on this medium, with preferences such as reduced motion."""
    mobile = width < 600
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": mobile}
    )
    wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": wanted})


def set_value(browser, element, value: object) -> None:
    """Move a slider as a hand would: set it and tell the page."""
    script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
    browser.execute_script(script, element, str(value))
