"""Files of the Hugging Face hub: downloads, kept in its cache, and uploads."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONNECTING = 5  # seconds until the hub's first answer
UNAUTHORISED, FORBIDDEN = 401, 403  # HTTP statuses of the hub
NOT_LOGGED_IN = "you are not logged in there. Run: hf auth login, or set HF_TOKEN"

os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # a failure is told as HubError


class HubError(Exception):
    """Why a transfer failed, in one line without a full stop."""


def hub_file(repository: str, *names: str) -> Path:
    """Return the path of the first of the named files that exists, downloading it if new.

    `repository` is "someone/model", or "someone/model@REVISION" for a commit or tag.
    """
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    repository, _, revision = repository.partition("@")
    wanted = revision or None
    with _told():
        for name in names:
            path = huggingface_hub.try_to_load_from_cache(repository, name, revision=wanted)
            if isinstance(path, str):
                return Path(path)
    # The library would ask six times in half a minute before its error.
    _check_reachable()
    with _told():
        for name in names:
            try:
                return Path(huggingface_hub.hf_hub_download(repository, name, revision=wanted))
            except LocalEntryNotFoundError:  # the connection broke
                raise
            except EntryNotFoundError:
                continue
    raise HubError(f"{repository} on the hub has no {' or '.join(names)}")


def hub_snapshot(
    repository: str, revision: str | None, names: Sequence[str], anew: bool = False
) -> Path:
    """Return the folder with the named files of a repository, all of one commit, its name.

    Where the hub is out of reach it is the one that was fetched last.

    Args:
        repository: Such as "someone/model".
        revision: A branch, tag or commit; None for the newest of the main branch.
        names: Of files; missing ones are left out.
        anew: Also download files again.
    """
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    wanted: dict[str, Any] = {"revision": revision, "allow_patterns": list(names)}
    try:
        _check_reachable()
    except HubError as error:
        try:
            wanted["local_files_only"] = True
            with _without_bars():
                return Path(huggingface_hub.snapshot_download(repository, **wanted))
        except LocalEntryNotFoundError:
            raise HubError(f"{error}, and nothing of it has been fetched before") from error
    with _told(), _without_bars():
        return Path(huggingface_hub.snapshot_download(repository, force_download=anew, **wanted))


def check_repository_name(repository: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise HubError(_first_line(error)) from error
    if repository.count("/") != 1:  # the hub knows a few without an owner; no user has one
        raise HubError("a repository is named OWNER/NAME")


def check_logged_in() -> None:
    import huggingface_hub

    _check_reachable()
    with _told():
        huggingface_hub.HfApi().whoami()


def upload(
    folder: Path, repository: str, message: str, private: bool, branch: str | None = None
) -> str:
    """Upload all files of a folder into a repository, as one commit, and return its address.

    Args:
        folder: Of the files; folders in it are left out.
        repository: Such as "someone/model"; made if there is none.
        message: Of the commit.
        private: Whether a repository that is made is for its owner alone.
        branch: Made if there is none; None is the main branch.
    """
    import huggingface_hub

    api = huggingface_hub.HfApi()
    files = sorted(path for path in folder.iterdir() if path.is_file())
    with _told(), _without_bars():
        address = api.create_repo(repository, private=private, exist_ok=True)
        if branch is not None:
            api.create_branch(repository, branch=branch, exist_ok=True)
        additions = [
            huggingface_hub.CommitOperationAdd(path_in_repo=path.name, path_or_fileobj=path)
            for path in files
        ]
        api.create_commit(repository, additions, commit_message=message, revision=branch)
    return str(address)


def _check_reachable() -> None:
    from huggingface_hub import constants, get_session

    said = [f"no whole answer within {2 * CONNECTING} s"]

    def ask() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=CONNECTING)
            said.clear()
        except Exception as error:  # whatever a proxy or the client may raise
            said[0] = _first_line(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(2 * CONNECTING)  # the client's own limit is one on every read
    if said:
        raise HubError(f"the hub cannot be reached ({said[0]})")


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise HubError(_reason(error)) from error


@contextmanager
def _without_bars() -> Iterator[None]:
    from huggingface_hub import utils

    are_drawn = not utils.are_progress_bars_disabled()
    utils.disable_progress_bars()
    try:
        yield
    finally:
        if are_drawn:
            utils.enable_progress_bars()


def _reason(error: Exception) -> str:
    from huggingface_hub import errors

    known: dict[type[Exception], str] = {
        errors.HFValidationError: "there is no such folder",
        errors.LocalTokenNotFoundError: NOT_LOGGED_IN,
        errors.RepositoryNotFoundError: "the hub has no such repository, or it is private and you "
        "have no access",
        errors.RevisionNotFoundError: "the repository has no such revision",
    }
    for kind, reason in known.items():
        if isinstance(error, kind):
            return reason
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else 0
    by_status = {UNAUTHORISED: NOT_LOGGED_IN, FORBIDDEN: "the hub does not let you write there"}
    return by_status.get(status) or _first_line(error)


def _first_line(error: Exception) -> str:
    message = str(error).strip() or type(error).__name__
    return message.splitlines()[0].rstrip(".")
