"""A reconstruction as one self-contained HTML page that shows the images and the proof."""

from lipspline.report.case import Case, Picture
from lipspline.report.page import reconstruction_page, write_page

__all__ = ["Case", "Picture", "reconstruction_page", "write_page"]
