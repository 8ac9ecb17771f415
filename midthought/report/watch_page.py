"""Serves the state and the report of a running run to browsers of this machine. It reads files and accepts no input."""

from __future__ import annotations

import html
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from midthought.errors import MidthoughtError
from midthought.report.html import report_page
from midthought.report.watch import RunWatcher, Watched, status_lines
from midthought.storage_errors import value_errors

ADDRESS = "127.0.0.1"
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>{refresh}
<style>body{{font:15px/1.5 system-ui;margin:2rem auto;max-width:60rem;padding:0 1rem;color-scheme:light dark}}
pre{{font:14px/1.4 ui-monospace,monospace;overflow-x:auto}}</style></head>
<body><h1>{title}</h1><pre>{lines}</pre><p><a href="/report">Report of the run so far</a>: curves and episodes. {note}</p>
</body></html>"""


class WatchServer(ThreadingHTTPServer):
    """`/` is the state of the run, which reloads itself while the run is not over; `/report` is its report, written now."""

    daemon_threads = True

    def __init__(self, watcher: RunWatcher, port: int) -> None:
        """`port` 0: a free one. Raises `OSError` if the port is in use."""
        self.watcher = watcher
        super().__init__((ADDRESS, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is no error; others are printed."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    timeout = 10.0
    """Seconds to wait for a client that sends or reads nothing."""

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in (ADDRESS, "localhost"):  # a page of another host whose name leads here must not read the run
            self._answer(HTTPStatus.FORBIDDEN, "this page is for 127.0.0.1")
        elif self.path in ("/", "/report"):
            watcher = self.server.watcher
            try:
                with value_errors(watcher.path):
                    page = _page(watcher.look()) if self.path == "/" else report_page(watcher.path)
            except (MidthoughtError, OSError) as error:
                self._answer(HTTPStatus.NOT_FOUND, html.escape(str(error)))
            else:
                self._answer(HTTPStatus.OK, page)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "not found")

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = text.encode("utf-8", errors="replace")
        self.send_response(status)
        for name, value in (
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def _page(watched: Watched) -> str:
    return _PAGE.format(
        title=html.escape(watched.path.name),
        refresh="" if watched.state.is_end else '<meta http-equiv="refresh" content="2">',
        lines=html.escape("\n".join(status_lines(watched, width=110, height=60))),
        note="" if watched.state.is_end else "This page reloads every 2 seconds.",
    )
