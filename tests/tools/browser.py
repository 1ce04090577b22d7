"""Finds a Chromium that starts, or installs one: Playwright's own, or Debian's package if that is not available.

The headless shell is tried before the full browser, as in Playwright: it renders the same pages with half the CPU time.

`python -m tests.tools.browser` is run by `make test`; browser tests call `launch`.
"""

import contextlib
import os
import shutil
import subprocess
import sys

from playwright.sync_api import Browser, Error, Playwright, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HELP = (
    "make test: no Chromium starts here and none could be installed; install one (Debian: apt-get install chromium; "
    "elsewhere: .venv/bin/python -m playwright install --with-deps chromium) or name one in SPECULOOS_CHROMIUM."
)


def launch_options(path: str = "") -> dict[str, object]:
    """Keyword arguments for `playwright.chromium.launch`; an empty `path` means Playwright's own browser."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    options: dict[str, object] = {"args": [*sandbox, "--disable-dev-shm-usage"]}
    return {**options, "executable_path": path} if path else options


def candidates() -> list[str]:
    """Browsers to try, best first; "" is Playwright's own."""
    configured = os.environ.get("SPECULOOS_CHROMIUM")
    if configured:
        return [configured]
    return ["", *(path for name in NAMES if (path := shutil.which(name)))]


def launch(playwright: Playwright) -> Browser | None:
    """The first browser that starts, or None if there is none."""
    for path in candidates():
        with contextlib.suppress(Error):
            return open_browser(playwright, path)
    return None


def open_browser(playwright: Playwright, path: str) -> Browser:
    """Launch a browser and open a page, which fails if its libraries are missing."""
    browser = playwright.chromium.launch(**launch_options(path))
    page = browser.new_page()
    page.goto("about:blank")
    page.close()
    return browser


def starts(path: str) -> bool:
    """True when the browser starts."""
    try:
        with sync_playwright() as playwright:
            open_browser(playwright, path).close()
    except Error:
        return False
    return True


def find() -> str | None:
    """The first browser that starts, as `launch_options` takes it, or None if there is none."""
    return next((path for path in candidates() if starts(path)), None)


def install() -> None:
    """Try Playwright's download, then, as root, Debian's package. The next `find` detects failures."""
    _quietly([sys.executable, "-m", "playwright", "install", "chromium"], timeout=300)
    if find() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _quietly(["apt-get", "update", "-q"], timeout=300)
        for package in ("chromium-headless-shell", "chromium"):  # the shell is missing in older releases
            _quietly(["apt-get", "install", "-y", "-q", "--no-install-recommends", package], timeout=900)
            if find() is not None:
                return


def _quietly(command: list[str], timeout: float) -> None:
    print("+ " + " ".join(command), file=sys.stderr)
    try:
        subprocess.run(
            command,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdout=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"  {error}", file=sys.stderr)


def main() -> int:
    if find() is None:
        install()
        if find() is None:
            print(HELP, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
