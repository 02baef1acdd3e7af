"""Pictures of learned activations."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from lipspline.networks.complexity import sparsify
from lipspline.networks.curves import plot_activations
from lipspline.nn.activations import LipschitzPReLU
from lipspline.nn.fold import fold
from lipspline.nn.spline import LinearSpline

pytest.importorskip("matplotlib")


def model() -> nn.Module:
    splines = LinearSpline(6, regions=8, radius=0.5, init=lambda t: torch.sin(4 * t) / 4)
    nn.init.constant_(splines.log_scale, 0.7)
    return nn.Sequential(nn.Linear(2, 6), splines, nn.Linear(6, 3), LipschitzPReLU(3, "maxmin"))


def drawn(figure):
    return [ax for ax in figure.axes if ax.lines]


@pytest.mark.parametrize("change", [lambda m: m, fold, lambda m: sparsify(m, torch.randn(99, 2))[0]])
def test_each_channel_of_each_learned_activation_has_a_picture_of_its_curve(change):
    network = change(model())
    axes = drawn(plot_activations(network, columns=4))
    assert [ax.get_title() for ax in axes] == [f"1 [{i}]" for i in range(6)] + [f"3 [{i}]" for i in range(3)]
    for ax in axes:
        layer, channel = (int(word.strip("[]")) for word in ax.get_title().split())
        x, y = (np.asarray(values, dtype=np.float32) for values in ax.lines[0].get_data())
        channels = network[layer].channels
        wanted = network[layer](torch.tensor(x)[:, None].expand(-1, channels))[:, channel]
        np.testing.assert_allclose(y, wanted.detach().numpy(), atol=1e-6)


def test_the_curve_stays_in_the_cone_and_the_limits_hold_all_knots():
    for ax in drawn(plot_activations(model())):
        curve, knots = ax.lines
        assert set(knots.get_xdata()) <= set(curve.get_xdata())
        x, y = curve.get_data()
        middle = np.interp(0.0, x, y)
        assert np.all(np.abs(y - middle) <= np.abs(x) + 1e-9)
        (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
        assert left < x[1] <= x[-2] < right
        assert top - bottom == pytest.approx(right - left)


def test_the_picture_shows_the_whole_range_in_which_a_spline_may_bend():
    relu, prelu = drawn(plot_activations(nn.Sequential(LinearSpline(1, init="relu"), LipschitzPReLU(1))))
    assert relu.get_xlim()[1] == pytest.approx(1.3 * (0.1 - 0.004), rel=1e-6)
    assert len(relu.lines[1].get_xdata()) == 1
    assert prelu.get_xlim() == (-1.0, 1.0)


def test_at_most_so_many_channels_of_a_layer_are_shown_and_shared_splines_once():
    figure = plot_activations(nn.Sequential(LinearSpline(50), LinearSpline(9, shared=True)), per_layer=5)
    titles = [ax.get_title() for ax in drawn(figure)]
    assert titles == ["0 [0]", "0 [12]", "0 [24]", "0 [37]", "0 [49]", "1 [shared]"]


def test_the_figure_can_be_saved(tmp_path):
    plot_activations(model()).savefig(tmp_path / "activations.png")
    assert (tmp_path / "activations.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plot_activations(nn.ReLU()), "plot_activations draws .* but the model has none"),
        (lambda: plot_activations(LinearSpline(2), columns=0), "columns must be at least 1, but is 0"),
        (lambda: plot_activations(LinearSpline(2), per_layer=0), "per_layer must be at least 1, but is 0"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'lipspline\[plot\]'"):
        plot_activations(LinearSpline(2))
