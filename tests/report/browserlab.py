"""A page opened in a real headless Chromium, and asked what it shows."""

from __future__ import annotations

import functools
import html
import json
import re
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ARTEFACTS = Path(__file__).parents[2] / "build" / "screenshots"
"""Where screenshots are kept for people to look at."""

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip

# The page runs no script of its own; this wrapper looks at it from outside, as its reader would.
_PROBE = """<!doctype html><meta charset="utf-8">
<style>body{margin:0} iframe{width:1200px;height:900px;border:0}</style>
<iframe id="frame" src="page/index.html"></iframe><pre id="result"></pre>
<script>
const frame = document.getElementById('frame');
frame.onload = () => {
  const doc = frame.contentDocument, win = frame.contentWindow, out = {};
  const visible = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
  out.title = doc.title;
  out.text = doc.body.innerText;
  out.overflow = doc.documentElement.scrollWidth - win.innerWidth;
  out.tables_cut = [...doc.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth);
  out.height = doc.documentElement.scrollHeight;
  out.fetched = win.performance.getEntriesByType('resource').map(e => e.name);
  out.figures = [...doc.querySelectorAll('figure')].map(f => {
    const svg = f.querySelector('svg'), box = svg.getBoundingClientRect();
    const inside = [...svg.querySelectorAll('text')].filter(t => {
      const b = t.getBoundingClientRect();
      return b.left >= box.left - 1 && b.right <= box.right + 1 && b.top >= box.top - 1 && b.bottom <= box.bottom + 1;
    });
    return { id: f.id, width: box.width, height: box.height, label: svg.getAttribute('aria-label'),
      texts: [...svg.querySelectorAll('text')].map(t => t.textContent.trim()),
      outside: svg.querySelectorAll('text').length - inside.length,
      shapes: [...svg.querySelectorAll('path,use')].filter(visible).length };
  });
  const ids = [...doc.querySelectorAll('[id]')].map(e => e.id);
  out.double_ids = ids.filter((id, i) => ids.indexOf(id) !== i);
  out.dangling = [...doc.querySelectorAll('svg use')].map(u => u.getAttribute('xlink:href') || u.getAttribute('href'))
    .filter(h => !doc.getElementById(h.slice(1)));
  out.links = [...doc.querySelectorAll('a')].map(a => {
    const href = a.getAttribute('href');
    if (href.startsWith('#')) {
      a.click();
      const target = doc.getElementById(href.slice(1));
      const top = target ? target.getBoundingClientRect().top : null;
      const end = win.scrollY + win.innerHeight >= doc.documentElement.scrollHeight - 2;
      return { href, reached: top !== null && (Math.abs(top) < 60 || end) };
    }
    if (!href.startsWith('data:')) {
      const request = new XMLHttpRequest();
      request.open('GET', a.href, false);
      request.send();
      return { href, status: request.status };
    }
    const comma = href.indexOf(',');
    return { href: href.slice(0, comma), download: a.download, content: atob(href.slice(comma + 1)) };
  });
  document.getElementById('result').textContent = JSON.stringify(out);
};
</script>"""


def chromium() -> str | None:
    """The browser's path, where one is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _run(profile: Path, *arguments: str) -> str:
    command = [str(chromium()), *_FLAGS, f"--user-data-dir={profile}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    return done.stdout


def look_at(folder: Path, scratch: Path, screenshot: str) -> dict[str, Any]:
    """Open `folder/index.html` over http in the browser; what it shows, and a screenshot under ARTEFACTS."""
    site = scratch / "site"
    site.mkdir()
    (site / "page").symlink_to(folder, target_is_directory=True)
    (site / "probe.html").write_text(_PROBE)
    handler = functools.partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            dom = _run(scratch / "profile", "--virtual-time-budget=8000", "--dump-dom", f"{base}/probe.html")
            found = re.search(r'<pre id="result">(.*?)</pre>', dom, re.S)
            assert found and found[1], "the page did not load in the browser"
            result: dict[str, Any] = json.loads(html.unescape(found[1]))
            ARTEFACTS.mkdir(parents=True, exist_ok=True)
            picture = ARTEFACTS / screenshot
            picture.unlink(missing_ok=True)
            size = f"--window-size=1200,{min(6000, int(result['height']))}"
            _run(scratch / "profile2", size, f"--screenshot={picture}", f"{base}/page/index.html")
        finally:
            server.shutdown()
    result["screenshot"] = str(picture)
    return result


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # the test's output is for failures
        pass
