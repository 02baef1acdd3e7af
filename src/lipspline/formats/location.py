"""Where the data are: a folder the user names, never one that is built in."""

import os
from dataclasses import dataclass
from pathlib import Path

from lipspline._infra import checks

VARIABLE = "LIPSPLINE_DATA"


@dataclass(frozen=True)
class Dataset:
    """What a dataset looks like below the data folder, where to get it, and how many images it has."""

    folder: str
    layout: str
    origin: str
    count: int


DATASETS = {
    "train400": Dataset(
        "bsd/train400",
        "400 gray PNG images of 180x180",
        "the 200 train and 200 test images of BSDS500 (Berkeley, 'Contour Detection and Image Segmentation "
        "Resources'), cropped to 180x180 as in the DnCNN training set",
        400,
    ),
    "bsd68": Dataset(
        "bsd/bsd68", "68 gray PNG images of 481x321", "the validation images of BSDS500 known as BSD68", 68
    ),
    "set12": Dataset("bsd/set12", "12 gray PNG images", "the images known as Set12, as in the DnCNN test sets", 12),
    "mnist": Dataset(
        "mnist",
        "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain "
        "or with .gz",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        70_000,
    ),
}


def data_dir(data: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: `data` (the option --data) if given, else the environment variable LIPSPLINE_DATA."""
    named = data if data is not None else os.environ.get(VARIABLE)
    if not named:
        raise FileNotFoundError(f"No data folder is named. Give --data DIR or set {VARIABLE}=DIR.")
    folder = Path(named).expanduser()
    if not folder.is_dir():
        source = "--data" if data is not None else VARIABLE
        raise FileNotFoundError(f"The data folder {folder} ({source}) does not exist or is not a folder.")
    return folder


def locate(name: str, data: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the dataset `name`, or an error that says what is missing, its layout and where to get it."""
    checks.one_of("dataset", name, DATASETS)
    dataset = DATASETS[name]
    folder = data_dir(data) / dataset.folder
    if not folder.is_dir():
        raise FileNotFoundError(
            f"The dataset {name!r} is missing: there is no folder {folder}. Put {dataset.layout} there; they are "
            f"{dataset.origin}."
        )
    return folder
