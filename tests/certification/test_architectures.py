"""Ten public architectures, small and in plain torch: the bound of each is above the norm of its exact Jacobian."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lipspline as ls


def conv_norm_relu(c_in: int, c_out: int, kernel: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1):
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, kernel, stride, padding, dilation, groups, bias=False),
        nn.BatchNorm2d(c_out),
        nn.ReLU(inplace=True),
    )


class Bottleneck(nn.Module):
    """The block of ResNet-50: narrow, filter, widen, and a shortcut that is a convolution where sizes change."""

    def __init__(self, c_in: int, c_out: int, stride: int = 1):
        super().__init__()
        self.body = nn.Sequential(
            conv_norm_relu(c_in, c_out // 2, 1),
            conv_norm_relu(c_out // 2, c_out // 2, 3, stride),
            nn.Conv2d(c_out // 2, c_out, 1, bias=False),
            nn.BatchNorm2d(c_out),
        )
        self.shortcut = nn.Conv2d(c_in, c_out, 1, stride, bias=False) if stride > 1 or c_in != c_out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class UNet(nn.Module):
    """Down by pooling, up by transposed convolutions, joined with what was there before."""

    def __init__(self):
        super().__init__()
        self.first, self.second = conv_norm_relu(1, 4), conv_norm_relu(4, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last, self.head = conv_norm_relu(8, 4), nn.Conv2d(4, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.first(x)
        coarse = self.second(F.max_pool2d(fine, 2))
        return self.head(self.last(torch.cat([fine, self.up(coarse)], dim=1)))


class DenseBlock(nn.Module):
    """DenseNet: each layer sees the outputs of all before it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(2 + 2 * i), nn.ReLU(), nn.Conv2d(2 + 2 * i, 2, 3, padding=1)) for i in range(3)
        )
        self.transition = nn.Sequential(nn.Conv2d(8, 4, 1), nn.AvgPool2d(2))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return self.transition(torch.cat(features, 1))


class InvertedResidual(nn.Module):
    """MobileNet-v2: widen, filter each channel by itself, narrow; ReLU6."""

    def __init__(self, channels: int):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, 3 * channels, 1), nn.ReLU6()),
            *(nn.Conv2d(3 * channels, 3 * channels, 3, padding=1, groups=3 * channels), nn.ReLU6()),
            nn.Conv2d(3 * channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Shuffled(nn.Module):
    """ShuffleNet-v2: one half of the channels is filtered, then channels are shuffled."""

    def __init__(self, channels: int):
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(conv_norm_relu(half, half, 1), conv_norm_relu(half, half, 3, groups=half))

    def forward(self, x: Tensor) -> Tensor:
        kept, filtered = x.chunk(2, dim=1)
        joined = torch.cat([kept, self.branch(filtered)], dim=1)
        b, c, h, w = joined.shape
        return joined.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)


class Inception(nn.Module):
    """GoogLeNet: four branches side by side."""

    def __init__(self, c_in: int):
        super().__init__()
        self.one, self.three = (
            conv_norm_relu(c_in, 2, 1),
            nn.Sequential(conv_norm_relu(c_in, 2, 1), conv_norm_relu(2, 2)),
        )
        self.five, self.pooled = conv_norm_relu(c_in, 2, 5), conv_norm_relu(c_in, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pooled(F.max_pool2d(x, 3, stride=1, padding=1))
        return torch.cat([self.one(x), self.three(x), self.five(x), pooled], dim=1)


class Mixer(nn.Module):
    """MLP-Mixer without normalisation: patches, then layers across patches and across channels, by turns."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 6, 4, stride=4)
        self.across_patches = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        self.across_channels = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.across_patches(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.across_channels(x)
        return self.head(x.mean(dim=1))


class Pyramid(nn.Module):
    """DeepLab: convolutions with growing dilation side by side, and the mean of the image, resized."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(conv_norm_relu(2, 3, 3, dilation=d) for d in (1, 2, 3))
        self.global_branch, self.head = nn.Conv2d(2, 3, 1), nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.global_branch(F.adaptive_avg_pool2d(x, 1))
        mean = F.interpolate(mean, size=x.shape[-2:], mode="bilinear", align_corners=False)
        return F.interpolate(self.head(torch.cat([b(x) for b in self.branches] + [mean], 1)), scale_factor=2)


class Volume(nn.Module):
    """A V-Net in three dimensions: strided convolutions down, transposed ones up, sums across."""

    def __init__(self):
        super().__init__()
        self.first, self.down = nn.Conv3d(1, 2, 3, padding=1), nn.Conv3d(2, 4, 2, stride=2)
        self.up, self.head, self.act = nn.ConvTranspose3d(4, 2, 2, stride=2), nn.Conv3d(2, 1, 1), nn.PReLU(2)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.act(self.first(x))
        return self.head(F.elu(self.up(F.elu(self.down(fine)))) + fine)


class WaveNet(nn.Module):
    """Signals: causal dilated convolutions whose outputs all go to the end, as in TCNs; no gates."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Conv1d(1, 4, 1), nn.Conv1d(4, 1, 1)
        self.layers = nn.ModuleList(nn.Conv1d(4, 4, 2, dilation=d) for d in (1, 2, 4))

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.first(x), 0.0
        for layer in self.layers:
            out = torch.tanh(layer(F.pad(x, (layer.dilation[0], 0))))
            x, total = x + out, total + out
        return self.head(F.relu(total))


class SuperResolution(nn.Module):
    """EDSR: residual blocks without normalisation, scaled by 0.1, and pixels shuffled to a larger image."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(True), nn.Conv2d(4, 4, 3, padding=1)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        first = x = self.first(x)
        for block in self.blocks:
            x = x + block(x).mul(0.1)
        return F.pixel_shuffle(self.last(x + first), 2)


ARCHITECTURES = {
    "ResNet-50": (lambda: nn.Sequential(Bottleneck(2, 4), Bottleneck(4, 8, stride=2)), (2, 6, 6)),
    "U-Net": (UNet, (1, 8, 8)),
    "DenseNet": (DenseBlock, (2, 6, 6)),
    "MobileNet": (lambda: nn.Sequential(conv_norm_relu(1, 3, stride=2), InvertedResidual(3)), (1, 9, 9)),
    "ShuffleNet": (lambda: nn.Sequential(Shuffled(4), Shuffled(4)), (4, 5, 5)),
    "Inception": (lambda: nn.Sequential(Inception(2), nn.AdaptiveAvgPool2d(2)), (2, 6, 6)),
    "MLP-Mixer": (Mixer, (1, 8, 8)),
    "DeepLab": (Pyramid, (2, 6, 6)),
    "V-Net": (Volume, (1, 4, 4, 4)),
    "WaveNet": (WaveNet, (1, 12)),
    "EDSR": (SuperResolution, (1, 6, 6)),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_bound_is_above_every_jacobian(name: str):
    torch.manual_seed(0)
    build, shape = ARCHITECTURES[name]
    model = build().double()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_var, 0.3, 2)  # type: ignore[arg-type]
            nn.init.normal_(layer.weight)
    model.eval()
    certificate = ls.certify(model, torch.randn(1, *shape, dtype=torch.float64))
    points = [scale * torch.randn(1, *shape, dtype=torch.float64) for scale in (0.1, 1.0, 1.0, 10.0)]
    size = points[0].numel()
    jacobians = [torch.autograd.functional.jacobian(model, x).reshape(-1, size) for x in points]
    exact = max(float(torch.linalg.matrix_norm(jacobian, ord=2)) for jacobian in jacobians)
    assert exact <= certificate.upper < 1000 * exact
    assert certificate.lower is not None
    assert 0 < certificate.lower <= certificate.upper
    assert certificate.valid_for == f"inputs of shape {(1, *shape)}"


def test_a_bound_that_forgets_a_branch_is_below(monkeypatch):
    """Without the sums of a V-Net and without its skips, the bound is too small, and certify sees it itself."""
    from lipspline.certification import moves, operations

    monkeypatch.setattr(operations, "add_maps", lambda one, other, sizes: one)
    monkeypatch.setattr(operations, "_sum", lambda call, parts: call.stretched(call.flows[0], 0.1, "wrong"))
    monkeypatch.setattr(moves, "joint_upper", lambda flows: 0.1)
    with pytest.raises(ValueError, match=r"was seen, so that the bound .* is wrong"):
        test_the_bound_is_above_every_jacobian("V-Net")
