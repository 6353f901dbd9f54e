"""A real browser for pages."""

import html
import re
import shutil
import subprocess

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

MEASURE = """<script>
onload = () => {
  const page = document.querySelector("iframe").contentDocument;
  if (page.getElementById("found"))  // that of a service, which is empty until it is asked
    document.querySelector("iframe").contentWindow.show({mean: 1.23456789, unusual: "a_long_name_".repeat(6)});
  page.querySelectorAll("details").forEach(each => each.open = true);
  const letters = [...page.querySelectorAll("svg text")].map(each => {
    const matrix = each.getScreenCTM();
    return parseFloat(getComputedStyle(each).fontSize) * Math.hypot(matrix.a, matrix.b);
  });
  document.body.dataset.wide = page.documentElement.scrollWidth;
  document.body.dataset.least = Math.min(...letters);
  document.body.dataset.texts = letters.length;
  const scales = [...page.querySelectorAll("svg")].map(
    each => each.getBoundingClientRect().width / each.viewBox.baseVal.width);
  document.body.dataset.scale = Math.min(...scales);
};
</script>"""


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


@pytest.fixture
def fitting(tmp_path, browser):
    """How a page fits into a frame: how ``wide`` it is, how many ``texts`` its figures have, the ``least`` of them, and
    the ``scale`` of the figure that is shrunk most, in pixels to a point."""

    def measure(page, width):
        frame = tmp_path / "frame.html"
        frame.write_text(
            f'<!DOCTYPE html><body><iframe style="width: {width}px; height: 900px; border: 0" '
            f'srcdoc="{html.escape(page)}"></iframe>{MEASURE}',
            encoding="utf-8",
        )
        dom = browser(frame, "--dump-dom", "--virtual-time-budget=5000", "--window-size=1400,1000")
        return {name: float(value) for name, value in re.findall(r'data-(wide|least|texts|scale)="([\d.]+)"', dom)}

    return measure
