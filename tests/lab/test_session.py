"""A job in the background: its events in order, its end, and how it is stopped."""

import threading

import pytest

from lipspline.lab.session import BackgroundJob, Cancelled


def finished(work):
    job = BackgroundJob(1, work)
    job.start()
    for thread in threading.enumerate():
        if thread.name == "lab-job-1":
            thread.join()
    return job


def kinds(job, since=0):
    return [event.kind for event in job.since(since)]


def test_events_come_in_order_and_the_result_last():
    def work(job):
        job.tell("step", calls=1)
        job.tell("step", calls=2)
        return {"answer": 42}

    job = finished(work)
    assert kinds(job) == ["step", "step", "done"]
    assert [event.number for event in job.since(0)] == [1, 2, 3]
    assert job.since(2)[0].data == {"answer": 42}
    assert job.since(3) == []
    assert not job.running


def test_only_the_latest_image_is_kept():
    def work(job):
        for i in range(3):
            job.tell("image", i=i)
            job.tell("step", i=i)
        return {}

    job = finished(work)
    assert [(e.kind, e.data.get("i")) for e in job.since(0)] == [
        ("step", 0),
        ("step", 1),
        ("image", 2),
        ("step", 2),
        ("done", None),
    ]


def test_an_error_becomes_its_sentence():
    def work(job):
        raise ValueError("The data are odd.")

    job = finished(work)
    assert kinds(job) == ["failed"]
    assert job.since(0)[0].data == {"sentence": "The data are odd."}


def test_a_cancelled_job_stops_at_its_next_step():
    begun, go = threading.Event(), threading.Event()

    def work(job):
        begun.set()
        go.wait()
        job.tell("step")
        raise AssertionError("not reached")

    job = BackgroundJob(1, work)
    job.start()
    begun.wait()
    assert job.running
    job.cancel()
    go.set()
    while job.running:
        pass
    assert kinds(job) == ["cancelled"]


def test_telling_a_cancelled_job_raises():
    job = BackgroundJob(1, lambda job: {})
    job.cancel()
    with pytest.raises(Cancelled):
        job.tell("step")
