"""The paper's formulas as pure functions of tensors.

`activations`, `spline`, `matrices` and `convolutions` have twins of the same name in `lipspline.nn`, which hold the
parameters. `knots` serves the layers for inference, `norm_bounds` serves `matrices` and `convolutions`. The others have
no layers: `quality` and `noise` measure images, `transport` measures distributions, and `ridge` serves the priors.
"""
