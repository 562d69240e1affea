"""Open every built page in headless Chromium, with networking off, and fail on what a reader would stumble over.

Usage: ``python .ci/check_site.py docs/_build/html``

A page fails if it asks another host for anything, writes an error to the console, shows a formula as TeX, has a line of
code that does not fit into its column, or has a link or an image without a target. A machine without Chromium is told
so, and passes.
"""

from __future__ import annotations

import pathlib
import shutil
import sys
import urllib.parse

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WINDOW = {"width": 1400, "height": 900}  # wide enough for both sidebars
LOOK = """menu => ({
  tex: [...document.querySelectorAll(".math")].filter(e => !e.querySelector("mjx-container svg"))
       .map(e => e.textContent.trim().slice(0, 60)),
  wide: [...document.querySelectorAll("article pre")]
       .filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1)
       .map(e => e.textContent.split("\\n").reduce((a, b) => a.length >= b.length ? a : b)),
  images: [...document.images].filter(e => e.complete && !e.naturalWidth).map(e => e.getAttribute("src")),
  links: [...new Set([...document.querySelectorAll(menu ? "a[href]" : "article a[href]")]
       .map(e => new URL(e.getAttribute("href"), location).href))],
  ids: [...document.querySelectorAll("[id]")].map(e => e.id),
})"""
TYPESET = (
    "() => !document.querySelector('.math') || (window.MathJax?.startup?.promise ?? Promise.resolve()).then(() => true)"
)


def watch(page):
    """The list that fills up with what goes wrong while pages load."""
    problems = []
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("console", lambda said: problems.append(f"console: {said.text}") if said.type == "error" else None)
    page.on("requestfailed", lambda request: problems.append(f"request failed: {request.url}"))
    return problems


def look(page, path, *, menu):
    """What is wrong with one page by itself, what it links to, and where it can be linked at."""
    page.goto(path.as_uri(), wait_until="load")
    page.evaluate(TYPESET)
    seen = page.evaluate(LOOK, menu)
    problems = [f"raw TeX: {text}" for text in seen["tex"]]
    problems += [f"code of {len(line)} columns does not fit: {line.strip()[:60]}" for line in seen["wide"]]
    problems += [f"image not shown: {source}" for source in seen["images"]]
    return problems, seen["links"], set(seen["ids"])


def link_problems(links, ids):
    """Links to files that are not there, and to places that the page there does not have."""
    for link in links:
        target = urllib.parse.urlsplit(link)
        path = pathlib.Path(urllib.parse.unquote(target.path))
        if target.scheme != "file":
            continue
        place = urllib.parse.unquote(target.fragment)
        if not path.is_file():
            yield f"no such file: {link}"
        elif place and path in ids and place not in ids[path]:
            yield f"no such place: {path.name}#{place}"


def main(site: pathlib.Path) -> int:
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        print(f"the site was not opened: none of {', '.join(BROWSERS)} is installed")
        return 0
    from playwright.sync_api import sync_playwright

    # Copies of sources as HTML hold code as it is written, which is wider than a page.
    pages = sorted(path for path in site.resolve().rglob("*.html") if "_modules" not in path.parts)
    found, links, ids = {}, {}, {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_context(viewport=WINDOW, offline=True).new_page()
        loading = watch(page)
        for path in pages:
            seen, links[path], ids[path] = look(page, path, menu=path.name == "index.html")
            found[path] = [*loading, *seen]
            loading.clear()
        browser.close()
    for path in pages:
        found[path] += link_problems(links[path], ids)
    problems = [f"{path.relative_to(site.resolve())}: {problem}" for path in pages for problem in found[path]]
    print("\n".join(problems) or f"{len(pages)} pages, opened without a network: none has a problem")
    return bool(problems) or not pages


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
