"""A real HTTP server on this machine that answers as its turns say."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHOP = "- Chop tree"


def said(text, tokens=9):
    """Return what a chat says."""
    return {"choices": [{"message": {"content": text}}], "usage": {"total_tokens": tokens}}


class Turns:
    """What a server does next: a dictionary is answered; a number is a status; see `_answer`.

    Attributes:
        asked: Path, headers and body of every request.
        url: Its address.
    """

    def __init__(self, *turns, models=("tiny",)):
        self.turns, self.models = list(turns), models
        self.asked, self.url = [], ""

    def next(self):
        return self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]


@contextlib.contextmanager
def serving(turns):
    """Serve until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(turns))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    turns.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield turns
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(turns):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            turns.asked.append((self.path, dict(self.headers), None))
            if turns.models is None:
                self._send(404, b"no")
            elif isinstance(turns.models, int):
                self._send(turns.models, b'{"error": {"message": "said no"}}')
            else:
                names = [{"id": name} for name in turns.models]
                self._send(200, json.dumps({"data": names}).encode())

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            turns.asked.append((self.path, dict(self.headers), body))
            with contextlib.suppress(OSError):
                self._answer(turns.next())

        def _answer(self, turn):
            if turn == "stall":
                time.sleep(0.4)
            elif turn == "die":
                self.connection.close()
            elif turn == "cut":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b'{"choices"')
            elif turn == "dribble":
                self.send_response(200)
                self.end_headers()
                for _ in range(20):
                    self.wfile.write(b" ")
                    time.sleep(0.05)
            elif turn == "away":
                self.send_response(302)
                self.send_header("Location", f"{turns.url}/elsewhere")
                self.end_headers()
            elif isinstance(turn, bytes):
                self._send(200, turn)
            elif isinstance(turn, int):
                self._send(turn, b'{"error": {"message": "said no"}}', {"Retry-After": "7"})
            elif turn == "repeat the key":
                key = self.headers["Authorization"]
                self._send(401, json.dumps({"error": {"message": f"wrong: {key}"}}).encode())
            else:
                self._send(200, json.dumps(turn).encode())

        def _send(self, status, content, headers=()):
            self.send_response(status)
            for name, value in dict(headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    return Handler
