"""A real browser for the tests of the page, live and saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PATIENCE = 30_000
"""Milliseconds that the page may take to show something."""

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
]

Shown = Any
"""A page of playwright."""


@pytest.fixture(scope="module")
def open_page(chromium: str) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a page at an address; no error may occur in it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)

        @contextmanager
        def opened(address: str, *, width: int = 1400, scheme: str = "light") -> Iterator[Shown]:
            size = {"width": width, "height": 900}
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.set_default_timeout(PATIENCE)
            wrong: list[str] = []
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.goto(address)
            yield page
            page.close()
            assert wrong == []

        yield opened
        browser.close()
