"""A real browser for pages."""

import shutil
import subprocess

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture
def browser(tmp_path):
    """Open a page with options of a headless Chromium: what it prints."""
    if CHROMIUM is None:
        pytest.skip("no Chromium or Chrome is installed to render the page")

    def run(page, *options):
        quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        profile = f"--user-data-dir={tmp_path / 'browser'}"
        line = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *quiet, profile]
        done = subprocess.run([*line, *options, page.as_uri()], capture_output=True, timeout=60, check=True)
        return done.stdout.decode()

    return run
