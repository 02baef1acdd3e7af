"""A reconstruction as one self-contained HTML page that shows the images and the proof."""

from lipspline.functional.quality import Agreement, DataMisfit
from lipspline.report.case import Case, Picture, Rescale
from lipspline.report.page import reconstruction_page, write_page
from lipspline.report.plain_words import certificate_lines, lines_text

__all__ = [
    "Agreement",
    "Case",
    "DataMisfit",
    "Picture",
    "Rescale",
    "certificate_lines",
    "lines_text",
    "reconstruction_page",
    "write_page",
]
