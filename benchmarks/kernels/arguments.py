"""Types of command-line arguments: what no run could use is refused before anything is measured."""

from __future__ import annotations

import argparse
import math
from pathlib import Path


def count(text: str) -> int:
    """A whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"give 1 or more, not {text}")
    return number


def duration(text: str) -> float:
    """Seconds: a finite number above 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"give a number above 0, not {text}")
    return number


def output_file(text: str) -> Path:
    """A path in a folder that exists."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder")
    return path
