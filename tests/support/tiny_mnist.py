"""An MNIST of 17 images, as files and as a mirror on this machine."""

from __future__ import annotations

import gzip
import hashlib
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hardgate_lab.rig import download
from hardgate_lab.rig.download import File
from hardgate_lab.rig.idx import IMAGES, LABELS


def header(*shape: int) -> bytes:
    return struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape)


def images(n: int, first: int = 0) -> bytes:
    """A file of n images with all grey levels in them."""
    return header(n, 28, 28) + bytes((first + i) % 256 for i in range(n * 784))


def labels(n: int) -> bytes:
    return header(n) + bytes(i % 10 for i in range(n))


NAMES = [file.name for file in download.FILES]
CONTENT = dict(zip(NAMES, [images(12), labels(12), images(5, first=7), labels(5)], strict=True))
TINY = tuple(
    File(name, hashlib.sha256(raw).hexdigest(), IMAGES if "images" in name else LABELS)
    for name, raw in CONTENT.items()
)


def fill(directory: Path, dot: str = "-", gz: str = "", **changed: bytes) -> Path:
    """The four tiny files in a new directory; `train_images=…` changes one of them."""
    directory.mkdir(parents=True)
    for name, raw in CONTENT.items():
        raw = changed.get("_".join(name.split("-")[:2]), raw)
        path = directory / (name.replace("-idx", f"{dot}idx") + gz)
        path.write_bytes(gzip.compress(raw) if gz else raw)
    return directory


class Server:
    """A mirror on this machine. `answers` maps a file name to what is sent: bytes or a handler."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.end = threading.Event()
        self.answers: dict[str, bytes | Callable[[BaseHTTPRequestHandler], None] | None] = {
            f"{name}.gz": gzip.compress(raw) for name, raw in CONTENT.items()
        }
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path[1:]
        self.requests.append(name)
        answer = self.answers.get(name)
        if callable(answer):
            return answer(request)
        request.send_response(404 if answer is None else 200)
        request.end_headers()
        request.wfile.write(answer or b"no such file")

    def stall(self, request: BaseHTTPRequestHandler) -> None:
        """Send nothing at all, and do not hang up."""
        self.end.wait(20)

    def stall_halfway(self, request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b"\x1f\x8b")
        self.end.wait(20)

    def endless(self, request: BaseHTTPRequestHandler) -> None:
        """A file, and zeros after it until the other side hangs up."""
        request.send_response(200)
        request.end_headers()
        request.wfile.write(gzip.compress(images(12)))
        self._until_hung_up(request, bytes(2**16), 0.0)

    def trickle(self, request: BaseHTTPRequestHandler) -> None:
        """A byte now and then, without end."""
        request.send_response(200)
        request.end_headers()
        self._until_hung_up(request, b"\x1f", 0.05)

    def _until_hung_up(self, request: BaseHTTPRequestHandler, part: bytes, pause: float) -> None:
        try:
            while not self.end.wait(pause):
                request.wfile.write(part)
        except OSError:
            return

    def close(self) -> None:
        self.end.set()
        self.http.shutdown()
        self.http.server_close()
