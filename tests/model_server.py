"""A real HTTP server on this machine that answers as its turns say."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHOP = "- Chop tree"


def said(text, tokens=9):
    """Return the answer of a chat."""
    return {"choices": [{"message": {"content": text}}], "usage": {"total_tokens": tokens}}


class Turns:
    """The server's next answers: a dictionary is answered; a number is a status; see `Handler`.

    Attributes:
        asked: Path, headers and body of every request.
        url: Its address.
    """

    def __init__(self, *turns, models=("tiny",)):
        self.turns, self.models = list(turns), models
        self.asked, self.url = [], ""

    def next(self):
        return self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]


class Server(ThreadingHTTPServer):
    """A server that answers as its turns say."""

    daemon_threads = True

    def __init__(self, turns):
        super().__init__(("127.0.0.1", 0), Handler)
        self.turns = turns


class Handler(BaseHTTPRequestHandler):
    """Answers one connection.

    A turn that is a word is one of the methods below; bytes are sent as they are.
    """

    def log_message(self, *_):
        pass

    def do_GET(self):
        turns = self.server.turns
        turns.asked.append((self.path, dict(self.headers), None))
        if turns.models is None:
            self._send(404, b"no")
        elif isinstance(turns.models, int):
            self._refuse(turns.models, "said no")
        else:
            self._send(200, json.dumps({"data": [{"id": name} for name in turns.models]}).encode())

    def do_POST(self):
        turns = self.server.turns
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        turns.asked.append((self.path, dict(self.headers), body))
        with contextlib.suppress(OSError):
            self._answer(turns.next())

    def stall(self):
        time.sleep(0.8)

    def die(self):
        self.connection.close()

    def cut(self):
        self._begin(200, {"Content-Length": "1000"})
        self.wfile.write(b'{"choices"')

    def dribble(self):
        self._begin(200)
        self._slowly(b" ")

    def drip_headers(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        self._slowly(b"X-Not-Yet: 1\r\n")
        self.wfile.write(b"\r\n" + json.dumps(said(CHOP)).encode())

    def go_on_and_on(self):
        self._slowly(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._answer(said(CHOP))

    def grumble(self):
        self._begin(503, {"Retry-After": "nan"})
        self._slowly(b"at length ")

    def away(self):
        self._begin(302, {"Location": f"{self.server.turns.url}/elsewhere"})

    def repeat_the_key(self):
        self._refuse(401, f"wrong: {self.headers['Authorization']}")

    def _slowly(self, piece):
        for _ in range(20):
            self.wfile.write(piece)
            time.sleep(0.05)

    def _answer(self, turn):
        if isinstance(turn, str):
            getattr(self, turn)()
        elif isinstance(turn, bytes):
            self._send(200, turn)
        elif isinstance(turn, int):
            self._refuse(turn, "said no", {"Retry-After": "7"})
        else:
            self._send(200, json.dumps(turn).encode())

    def _refuse(self, status, message, headers=()):
        self._send(status, json.dumps({"error": {"message": message}}).encode(), headers)

    def _send(self, status, content, headers=()):
        self._begin(status, headers)
        self.wfile.write(content)

    def _begin(self, status, headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.end_headers()


@contextlib.contextmanager
def serving(turns):
    """Serve until the end of the block."""
    server = Server(turns)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    turns.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield turns
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
