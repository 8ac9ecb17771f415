"""An ASGI application served on loopback, in a thread of the test; and single requests to it."""

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from typing import Any


def plain_server(application: Any) -> Any:
    import uvicorn

    return uvicorn.Server(uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=1))


@contextlib.contextmanager
def served(application: Any, make_server: Callable[[Any], Any] = plain_server) -> Iterator[str]:
    """Gives the application's address."""
    from midthought.memory.service.server import address, listen

    server = make_server(application)
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield address(listener)
        finally:
            server.should_exit = True
            thread.join(30)


def request(
    address: str, path: str, data: bytes | None = None, method: str | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Sends data as JSON to HOST:PORT. Returns status, headers in lower case, and body. `headers`: with _ in place of -."""
    sent = {"Content-Type": "application/json"} if data is not None else {}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request(method or ("GET" if data is None else "POST"), path, data, sent)
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
