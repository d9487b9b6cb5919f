"""A hub on this machine, instead of the functions by which huggingface_hub asks the real one."""

import hashlib
import os
from types import SimpleNamespace

from huggingface_hub import errors

OWNER, TOKEN = "someone", "hf_secret"


class Repository:
    """Commits by their name, each a dictionary of files; branches lead to commits."""

    def __init__(self, private):
        self.private = private
        self.branches, self.commits = {}, {}
        self.commit("main", {})

    def commit(self, branch, files):
        """Add files to a branch."""
        before = self.commits.get(self.branches.get(branch), {})
        name = hashlib.sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[name] = before | files
        self.branches[branch] = name


class FakeHub:
    """The library's view of a hub.

    Attributes:
        repositories: By name.
        n_fetched: How often files were fetched.
        cache: The folder in which the library keeps them.
        is_reachable: Whether there is a network.
        is_damaging: Whether every byte sent is zero.
    """

    def __init__(self, cache):
        self.repositories, self.n_fetched, self.cache = {}, 0, cache
        self.is_reachable, self.is_damaging = True, False

    def install(self, monkeypatch):
        """Stand where the library's own functions are."""
        monkeypatch.setattr("huggingface_hub.HfApi", lambda: self)
        monkeypatch.setattr("huggingface_hub.snapshot_download", self.snapshot_download)
        monkeypatch.setenv("HF_TOKEN", TOKEN)

    def files(self, name, branch="main"):
        """Return the files that a branch of a repository holds."""
        repository = self.repositories[name]
        return repository.commits[repository.branches[branch]]

    def snapshot_download(self, name, revision, allow_patterns, force_download):
        """Return the folder of a commit, its files behind links as the library keeps them."""
        if not self.is_reachable:
            last = sorted(self.cache.glob(f"{name}/*"), key=os.path.getmtime)
            if not last:
                raise errors.LocalEntryNotFoundError("nothing")
            return str(last[-1])
        repository = self.repositories.get(name)
        if repository is None or (repository.private and not self._is_known()):
            raise errors.RepositoryNotFoundError("404", response=_response(404))
        commit = repository.branches.get(revision or "main", revision)
        if commit not in repository.commits:
            raise errors.RevisionNotFoundError("404", response=_response(404))
        folder = self.cache / name / commit
        if not folder.exists() or force_download:
            self.n_fetched += 1
            folder.mkdir(parents=True, exist_ok=True)
            for path, content in repository.commits[commit].items():
                blob = self.cache / hashlib.sha256(content).hexdigest()
                blob.write_bytes(bytes(len(content)) if self.is_damaging else content)
                (folder / path).unlink(missing_ok=True)
                if path in allow_patterns:
                    (folder / path).symlink_to(blob)
        return str(folder)

    def whoami(self):
        """Refuse users that are not logged in."""
        self._connect()
        if "HF_TOKEN" not in os.environ:
            raise errors.LocalTokenNotFoundError("no token")
        if not self._is_known():
            raise errors.HfHubHTTPError("401", response=_response(401))

    def create_repo(self, name, private, exist_ok):
        """Make a repository unless there is one, and return its address."""
        if not name.startswith(f"{OWNER}/"):
            raise errors.HfHubHTTPError("403", response=_response(403))
        assert exist_ok
        self.repositories.setdefault(name, Repository(private))
        return f"https://hub/{name}"

    def create_branch(self, name, branch, exist_ok):
        """Make a branch unless there is one."""
        assert exist_ok
        branches = self.repositories[name].branches
        branches.setdefault(branch, branches["main"])

    def upload_folder(self, *, repo_id, folder_path, commit_message, revision):
        """Take files in."""
        files = {path.name: path.read_bytes() for path in folder_path.iterdir()}
        self.repositories[repo_id].commit(revision or "main", files)

    def _connect(self):
        if not self.is_reachable:
            raise ConnectionError("no connection")

    def _is_known(self):
        return os.environ.get("HF_TOKEN") == TOKEN


def _response(status):
    return SimpleNamespace(status_code=status, headers={}, request=None)
