"""What several test files share: the command, run in this process, and a browser."""

import shutil
import sys

import pytest

from copilot_insights.cli import main

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """No test takes or leaves anything in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def cli(monkeypatch, capsys):
    """Exit code, standard output and standard error of `copilot-insights WORDS`."""

    def run(*words, width=120):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "argv", ["copilot-insights", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def browser():
    """Debian's chromium, headless."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if not CHROMIUM:
        pytest.skip("needs chromium")
    with api.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def opened(browser, tmp_path):
    """A function: the text of a page → the page, shown, and what it said on the console."""
    pages = []

    def show(text, width=1400, scheme="light"):
        path = tmp_path / f"{len(pages)}.html"
        path.write_text(text, encoding="utf-8")
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        said = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda r: r.url.startswith("file:") or said.append(r.url))
        page.goto(path.as_uri())
        pages.append(page)
        return page, said

    yield show
    for page in pages:
        page.close()
