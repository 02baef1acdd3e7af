"""The wheel works in an empty, read-only place, without HOME and compiler."""

import pytest
import smoke
import yaml


@pytest.mark.slow
def test_the_wheel_works_for_a_stranger():
    assert "kernels" not in smoke.main().split(":")[0]


def test_the_workflow_builds_and_tests_every_platform():
    """Read as YAML; what it names exists in the matrix of both jobs."""
    workflow = yaml.safe_load((smoke.ROOT / ".github/workflows/wheels.yml").read_text())
    jobs = workflow["jobs"]
    platforms = ["ubuntu-latest", "ubuntu-24.04-arm", "macos-latest", "windows-latest"]
    assert jobs["wheels"]["strategy"]["matrix"]["os"] == platforms == jobs["test"]["strategy"]["matrix"]["os"]
    assert jobs["test"]["needs"] == "wheels"
