"""The lab by real requests: previews, jobs, events, cancelling, uploads, the report."""

import http.client
import io
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

import sample_files
from lipspline import operators, priors
from lipspline.imaging.strength import PRIOR
from lipspline.imaging.verify import verify
from lipspline.lab.result import CERTIFICATES, DOWNLOADS
from lipspline.lab.session import ITERATION
from live_lab import ORDER, PIXELS


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def download(lab, path):
    """What a link of the page gives, as bytes, with the headers."""
    connection = http.client.HTTPConnection("127.0.0.1", lab.port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200, path
        return response.read(), response.headers
    finally:
        connection.close()


def test_the_files_of_the_page_are_there(lab):
    for path, kind in {"/": "text/html", "/lab.js": "text/javascript", "/page.css": "text/css"}.items():
        status, _, headers = lab.ask("GET", path)
        assert (status, headers.get_content_type()) == (200, kind)


def test_the_choices_are_those_of_the_catalogue_and_the_best_comes_first(lab):
    _, choices, _ = lab.ask("GET", "/choices")
    assert [image["name"] for image in choices["images"]][:3] == ["head", "phantom", "camera"]
    names = [model["name"] for model in choices["models"]]
    assert names == ["small", *priors.catalogue()]
    assert choices["running"] is None


@pytest.mark.parametrize(
    ("changes", "claimed"),
    [({"beta": 0.2}, True), ({"beta": 0.5}, True), ({"beta": 0.52}, False), ({"beta": 0.9, "contraction": 0.5}, False)],
)
def test_the_promise_changes_with_beta(lab, changes, claimed):
    """[eq:EstForward] holds up to β = 1/2."""
    status, answer, _ = lab.order("/preview", **changes)
    assert status == 200
    row = answer["promise"].split("Data stability")[1].split("</tr>")[0]
    assert ("≤ 1<" in row) == claimed


def test_the_promise_changes_with_the_contraction(lab):
    """[eq:EstCont]: α ‖H‖ K / (1 - K), with α = 1/‖H‖²."""
    promise = lab.order("/preview", contraction=0.9)[1]["promise"]
    norm = operators.MRI(operators.cartesian_mask(PIXELS, acceleration=2)).norm_bounds()[1]
    shown = re.search(r"by shrinking.*?≤ ([\d.]+)<", promise)
    assert float(shown[1]) == pytest.approx(0.9 / (1 - 0.9) / norm, rel=2e-6)
    assert "to the only answer" in promise


def test_a_preview_shows_the_measurement(lab):
    for kind, name in (("mri", "Zero-filled"), ("ct", "Filtered backprojection")):
        answer = lab.order("/preview", kind=kind)[1]
        assert answer["direct_name"] == name
        assert answer["direct"].startswith("data:image/png;base64,")
        assert answer["direct"] != answer["reference"]
        assert 5 < answer["quality"]["psnr"] < 60


def test_a_preview_says_what_would_suit_the_noise(lab):
    """A file that does not say its noise level is taken for 15/255; β = 0.3 (255 n / 15)² for ‖H‖ = 1."""
    for noise in (0.02, 0.04):
        suited = lab.order("/preview", noise=noise, level=None, beta=None)[1]["suited"]
        assert suited["beta"] == pytest.approx(PRIOR * (17 * noise) ** 2)


@pytest.mark.parametrize("kind", ["mri", "ct"])
def test_a_job_tells_of_every_step_and_ends_with_the_result(lab, kind):
    status, answer, _ = lab.order(kind=kind)
    assert status == 202
    events = lab.finish(answer["job"])
    calls = [data["calls"] for name, data in events if name == "step"]
    assert calls == list(range(1, len(calls) + 1))
    residuals = [data["residual"] for name, data in events if name == "step"]
    assert residuals[-1] <= ITERATION.tol
    images = [data for name, data in events if name == "image"]
    assert images[-1]["source"].startswith("data:image/png;base64,")
    assert "<polyline" in images[-1]["chart"]
    name, last = events[-1]
    assert name == "done"
    assert 'class="block case"' in last["section"]
    status, page, headers = lab.ask("GET", "/report.html")
    assert status == 200
    assert page.startswith("<!doctype html>")
    assert headers.get_content_type() == "text/html"


def test_events_can_be_taken_up_where_they_were_left(lab):
    number = lab.order()[1]["job"]
    lab.finish(number)
    _, text, _ = lab.ask("GET", f"/jobs/{number}/events", headers={"Last-Event-ID": "3"})
    assert text.startswith("id: ")
    assert int(text.split("\n")[0].removeprefix("id: ")) > 3


def test_events_of_a_job_that_is_over_come_to_an_end_wherever_they_are_taken_up(lab):
    number = lab.order()[1]["job"]
    last = len(lab.finish(number)) + 1000
    assert lab.ask("GET", f"/jobs/{number}/events", headers={"Last-Event-ID": str(last)})[:2] == (200, "")


def test_one_job_at_a_time(lab, slow):
    first = lab.order()[1]["job"]
    status, answer, _ = lab.order()
    assert status == 409
    assert answer["error"].startswith("One reconstruction is running already, and the lab runs one at a time.")
    assert lab.ask("GET", "/choices")[1]["running"] == first
    assert lab.order("/preview")[0] == 200


def test_a_job_can_be_cancelled_and_the_next_one_runs(lab, slow):
    number = lab.order()[1]["job"]
    time.sleep(0.3)
    begin = time.monotonic()
    assert lab.ask("POST", f"/jobs/{number}/cancel", b"{}")[0] == 202
    assert lab.finish(number)[-1][0] == "cancelled"
    assert time.monotonic() - begin < 5
    assert lab.order()[0] == 202


def test_an_error_while_solving_is_one_sentence(lab, session, monkeypatch):
    def broken(*args, **kwargs):
        raise ValueError("The denoiser is out of order.")

    monkeypatch.setattr("lipspline.lab.session.solve_problem", broken)
    assert lab.finish(lab.order()[1]["job"]) == [("failed", {"sentence": "The denoiser is out of order."})]


@pytest.mark.parametrize("path", ["/jobs/999/events", "/jobs/x/events", "/jobs/-1/events"])
def test_jobs_that_are_not_there(lab, path):
    assert lab.ask("GET", path)[0] == 404


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": "../secret"}, "image must be one of"),
        ({"model": "/etc/passwd"}, "model must be one of"),
        ({"beta": 2}, "beta must be a number from"),
        ({"noise": "much"}, "noise must be a number from"),
        ({"kind": None}, "kind must be one of"),
    ],
)
@pytest.mark.parametrize("path", ["/jobs", "/preview"])
def test_bad_orders_are_one_sentence(lab, path, changes, message):
    status, answer, _ = lab.order(path, **changes)
    assert status == 400
    assert answer["error"].startswith(message)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 5000, b"null"])
def test_what_is_no_order_is_one_sentence(lab, body):
    status, answer, _ = lab.ask("POST", "/jobs", body)
    assert status == 400
    assert "JSON object" in answer["error"]


def test_an_uploaded_image_is_reconstructed(lab):
    pixels = np.random.default_rng(0).random((40, 32))
    status, answer, _ = lab.ask("POST", "/images?name=%3Cb%3Escan.npy", npy(pixels))
    assert status == 201
    assert answer["name"].endswith(": <b>scan.npy")
    events = lab.finish(lab.order(image=answer["name"])[1]["job"])
    assert events[-1][0] == "done"
    assert "<b>scan" not in events[-1][1]["section"]


@pytest.mark.parametrize(("name", "body"), [("a.png", b"GIF89a"), ("a.exe", b"MZ"), ("a.npy", b""), ("", b"x")])
def test_bad_files_are_one_sentence(lab, name, body):
    status, answer, _ = lab.ask("POST", f"/images?name={name}", body)
    assert status == 400
    assert answer["error"].endswith((".", ")."))
    assert "\n" not in answer["error"]
    assert "/tmp" not in answer["error"]


def test_wrong_methods_are_refused(lab):
    assert lab.ask("GET", "/jobs")[0] == 405
    assert lab.ask("DELETE", "/")[0] == 405


def test_the_order_stands_in_the_report(lab):
    lab.finish(lab.order(beta=0.34)[1]["job"])
    page = lab.ask("GET", "/report.html")[1]
    assert json.dumps({**ORDER, "beta": 0.34})[1:40].replace('"', "&quot;") in page


def test_there_is_nothing_to_keep_before_something_was_reconstructed(lab):
    kept, lab.session.result = lab.session.result, None
    for path in ("/report.html", "/result.npy", "/result.png.json", "/result"):
        assert lab.ask("GET", path)[0] == 404
    lab.session.result = kept


def test_the_image_can_be_kept_in_the_formats_of_the_library(lab, tmp_path):
    """What is downloaded is the last iterate, in the unit of the image."""
    lab.finish(lab.order()[1]["job"])
    result = lab.session.result
    wanted = result.problem.image(result.solved[-1].solution.value) * result.problem.scale
    for ending in (*DOWNLOADS, *CERTIFICATES):
        content, headers = download(lab, f"/result{ending}")
        stem = lab.session.catalogue.get(result.measurement.image).stem
        assert headers["Content-Disposition"] == f'attachment; filename="{stem}-lipspline{ending}"'
        if ending == ".npy":
            np.testing.assert_allclose(np.load(io.BytesIO(content))[0], wanted, rtol=1e-6)
        if ending in CERTIFICATES:
            assert json.loads(content)["guaranteed"] is True


def test_an_error_that_advises_an_option_of_the_library_says_that_the_lab_has_none(lab):
    rows = np.random.default_rng(0).random((40, 1)) * np.ones((40, 30))
    rows[:20] = 0.01
    name = lab.ask("POST", "/images?name=radon.npy&holds=sinograms", npy(rows))[1]["name"]
    status, answer, _ = lab.order("/preview", image=name, kind="ct")
    assert status == 400
    assert "transpose=True" in answer["error"]
    assert answer["error"].endswith("The lab has no such option: lipspline reconstruct has it.")


def test_a_page_that_is_loaded_again_is_told_that_there_is_a_result(lab):
    lab.finish(lab.order()[1]["job"])
    assert lab.ask("GET", "/choices")[1]["result"] is True
    kept, lab.session.result = lab.session.result, None
    assert lab.ask("GET", "/choices")[1]["result"] is False
    lab.session.result = kept
    assert "choices.result" in lab.ask("GET", "/lab.js")[1]


def test_the_page_says_what_to_use_for_a_certificate_that_can_be_verified(lab):
    assert "<code>lipspline verify</code>" in lab.ask("GET", "/")[1]


@pytest.mark.parametrize("ending", DOWNLOADS)
def test_a_download_with_its_certificate_is_verified(lab, tmp_path, monkeypatch, ending):
    """The files as a browser saves them, one of them renamed, beside the file that was opened."""
    monkeypatch.chdir(tmp_path)
    Path("scan.npy").write_bytes(npy(sample_files.single_coil()))
    name = lab.ask("POST", "/images?name=scan.npy", Path("scan.npy").read_bytes())[1]["name"]
    lab.finish(lab.order(image=name, acceleration=2)[1]["job"])
    for what, called in ((ending, f"mine{ending}"), (f"{ending}.json", f"scan-lipspline{ending}.json")):
        Path(called).write_bytes(download(lab, f"/result{what}")[0])
    found = verify(f"mine{ending}")
    outcomes = {check.name: str(check.outcome) for check in found.checks}
    assert found.holds, str(found)
    assert {outcomes[name] for name in ("certificate", "files", "name", "input", "claims", "bound")} == {"holds"}
    Path(f"mine{ending}").write_bytes(Path(f"mine{ending}").read_bytes() + b"x")
    assert not verify(f"scan-lipspline{ending}.json").holds


def test_the_result_is_told_again_with_the_settings_it_was_made_with(lab):
    lab.finish(lab.order(beta=0.31)[1]["job"])
    status, told, _ = lab.ask("GET", "/result")
    assert status == 200
    assert told["request"] == {**ORDER, "beta": 0.31}
    assert told["section"] == lab.session.result.section
    assert told["image"].startswith("data:image/png;base64,")
