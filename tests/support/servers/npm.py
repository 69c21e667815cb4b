"""Packages from npm, installed once into a directory of the virtual environment."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

INSTALL_SECONDS = 180
QUIET = ("--silent", "--no-audit", "--no-fund", "--no-save")


def need_packages(name: str, *packages: str) -> Path:
    """The directory of that name with these packages in ``node_modules``; skips where npm can't install them."""
    what = " and ".join(packages)
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip(f"no npm here (Debian: apt-get install npm): {what} NOT tried")
    place = Path(sys.prefix, name)
    if all((place / "node_modules" / package.rpartition("@")[0]).exists() for package in packages):
        return place
    place.mkdir(exist_ok=True)
    install = ["npm", "install", "--prefix", str(place), *QUIET, *packages]
    try:
        done = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm has not finished in {INSTALL_SECONDS} s: {what} NOT tried")
    if done.returncode != 0:
        pytest.skip(f"npm can't install: {what} NOT tried: {done.stderr.strip()[-300:]}")
    return place
