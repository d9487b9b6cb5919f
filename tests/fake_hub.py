"""A hub on this machine: an HTTP server that answers what huggingface_hub asks of the real one."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import yaml

OWNER, TOKEN = "someone", "hf_secret"
LARGE = (".safetensors", ".png")  # kept by their sha256, as the real hub keeps what is binary


class Answer(NamedTuple):
    """What the hub answers."""

    status: int = 200
    content: object = b""  # bytes, or what is sent as JSON
    headers: dict = {}  # noqa: RUF012  (never changed)


NO_REPOSITORY = Answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
NO_REVISION = Answer(404, {"error": "Invalid rev"}, {"X-Error-Code": "RevisionNotFound"})
NO_ENTRY = Answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})


class Repository:
    """Commits by their name, each a dictionary of files; branches lead to commits."""

    def __init__(self, private):
        self.private = private
        self.branches, self.commits = {}, {}
        self.commit("main", {})

    def commit(self, branch, files):
        """Add files to what a branch holds."""
        before = self.commits.get(self.branches.get(branch), {})
        name = hashlib.sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[name] = before | files
        self.branches[branch] = name
        return name


class FakeHub:
    """The server; `repositories` is what it keeps, `asked` what it was asked for."""

    def __init__(self):
        self.repositories, self.large, self.asked = {}, {}, []
        self.damaged = set()  # files of which every byte sent is zero
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        """Be out of reach from now on."""
        self._server.shutdown()
        self._server.server_close()

    def files(self, name, branch="main"):
        """Return the files that a branch of a repository holds."""
        repository = self.repositories[name]
        return repository.commits[repository.branches[branch]]

    def answer(self, method, path, body, token):
        """Return the answer to a request."""
        self.asked.append(f"{method} {path}")
        for pattern, respond in ROUTES.items():
            if found := re.fullmatch(pattern, f"{method} {path}"):
                return respond(self, body, token == f"Bearer {TOKEN}", *found.groups())
        return Answer(404, {"error": f"{method} {path}"})

    def _handler(self):
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def respond(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = unquote(urlsplit(self.path).path)
                token = self.headers.get("Authorization")
                status, content, headers = hub.answer(self.command, path, body, token)
                if not isinstance(content, bytes):
                    content = json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_HEAD = do_POST = do_PUT = respond

            def log_message(self, *arguments):
                """Say nothing."""

        return Handler


def who(hub, body, known):
    return Answer(content={"name": OWNER}) if known else Answer(401, {"error": "Invalid token"})


def create(hub, body, known):
    asked = json.loads(body)
    name = f"{asked['organization']}/{asked['name']}"
    if asked["organization"] != OWNER or not known:
        return Answer(403, {"error": "You don't have the rights to create a model there"})
    if name in hub.repositories:
        there = {"error": "You already created this repo", "url": f"{hub.address}/{name}"}
        return Answer(409, there)
    hub.repositories[name] = Repository(asked.get("visibility") == "private")
    return Answer(content={"url": f"{hub.address}/{name}"})


def check_card(hub, body, known):
    content = json.loads(body)["content"]
    yaml.safe_load(content.split("---")[1])
    return Answer(content={"errors": [], "warnings": []})


def branch(hub, body, known, name, new):
    repository = hub.repositories[name]
    if new in repository.branches:
        return Answer(409, {"error": "Reference already exists"})
    repository.branches[new] = repository.branches["main"]
    return Answer(content={})


def upload_modes(hub, body, known, name, revision):
    paths = [file["path"] for file in json.loads(body)["files"]]
    modes = {path: "lfs" if path.endswith(LARGE) else "regular" for path in paths}
    files = [{"path": p, "uploadMode": mode, "shouldIgnore": False} for p, mode in modes.items()]
    return Answer(content={"files": files})


def batch(hub, body, known, name):
    objects = [
        {**asked, "actions": {"upload": {"href": f"{hub.address}/large/{asked['oid']}"}}}
        for asked in json.loads(body)["objects"]
    ]
    return Answer(content={"transfer": "basic", "objects": objects})


def put_large(hub, body, known, digest):
    assert hashlib.sha256(body).hexdigest() == digest
    hub.large[digest] = body
    return Answer()


def commit(hub, body, known, name, revision):
    files = {}
    for line in body.splitlines():
        match json.loads(line):
            case {"key": "file", "value": {"path": path, "content": content}}:
                files[path] = base64.b64decode(content)
            case {"key": "lfsFile", "value": {"path": path, "oid": digest}}:
                files[path] = hub.large[digest]
    made = hub.repositories[name].commit(revision, files)
    return Answer(content={"commitUrl": f"{hub.address}/{name}/commit/{made}", "commitOid": made})


def revision_of(hub, body, known, name, revision):
    repository = hub.repositories.get(name)
    if repository is None or (repository.private and not known):
        return NO_REPOSITORY
    found = repository.branches.get(revision, revision)
    if found not in repository.commits:
        return NO_REVISION
    return Answer(content={"id": name, "sha": found, "siblings": []})


def tree(hub, body, known, name, revision):
    entries = []
    for path, content in hub.repositories[name].commits[revision].items():
        digest = hashlib.sha256(content).hexdigest()
        entry = {"type": "file", "path": path, "size": len(content), "oid": digest[:40]}
        if path.endswith(LARGE):
            entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
        entries.append(entry)
    return Answer(content=entries)


def file(hub, body, known, name, revision, path):
    content = hub.repositories[name].commits[revision].get(path)
    if content is None:
        return NO_ENTRY
    digest = hashlib.sha256(content).hexdigest()
    if path in hub.damaged:
        content = bytes(len(content))
    return Answer(content=content, headers={"ETag": f'"{digest}"', "X-Repo-Commit": revision})


MODEL = "([^/]+/[^/]+)"
ROUTES = {
    "HEAD /?": lambda *_: Answer(),
    "GET /api/whoami-v2": who,
    "POST /api/repos/create": create,
    "POST /api/validate-yaml": check_card,
    f"POST /api/models/{MODEL}/branch/(.+)": branch,
    f"POST /api/models/{MODEL}/preupload/(.+)": upload_modes,
    f"POST /{MODEL}.git/info/lfs/objects/batch": batch,
    "PUT /large/([0-9a-f]{64})": put_large,
    f"POST /api/models/{MODEL}/commit/(.+)": commit,
    f"GET /api/models/{MODEL}/revision/(.+)": revision_of,
    f"GET /api/models/{MODEL}/tree/([^/]+)": tree,
    f"(?:GET|HEAD) /{MODEL}/resolve/([^/]+)/(.+)": file,
}
