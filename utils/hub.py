"""Files of the Hugging Face hub: downloads, kept in its cache, and uploads."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from utils.errors import UserError

CONNECTING = 5  # seconds until the hub's first answer
NOT_LOGGED_IN = "you are not logged in there. Run: hf auth login, or set HF_TOKEN"
BY_STATUS = {401: NOT_LOGGED_IN, 403: "the hub does not let you write there"}

os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # a failure is told as HubError
os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", str(CONNECTING))


class HubError(UserError):
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
        ask = huggingface_hub.get_session().head
        ask(huggingface_hub.constants.ENDPOINT, timeout=CONNECTING)
        for name in names:
            try:
                return Path(huggingface_hub.hf_hub_download(repository, name, revision=wanted))
            except LocalEntryNotFoundError:  # the connection broke
                raise
            except EntryNotFoundError:
                continue
    raise HubError(f"{repository} on the hub has no {' or '.join(names)}")


def hub_snapshot(place: str, names: Sequence[str], anew: bool = False) -> Path:
    """Return the folder with the named files of a repository, all of one commit, its name.

    Where the hub is out of reach, the library gives the one that was fetched last. `place` is
    "someone/model" or "someone/model@REVISION"; `anew` also downloads files again.
    """
    import huggingface_hub

    repository, _, revision = place.partition("@")
    with _told(f"hub:{place}: "):
        check_repository_name(repository)
        folder = huggingface_hub.snapshot_download(
            repository, revision=revision or None, allow_patterns=list(names), force_download=anew
        )
    return Path(folder)


def check_repository_name(repository: str) -> None:
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(repository)
    if repository.count("/") != 1:  # the hub knows a few without an owner; no user has one
        raise HubError("a repository is named OWNER/NAME")


def check_access(repository: str) -> None:
    """Raise HubError where no repository can have the name, or nobody is logged in."""
    import huggingface_hub

    with _told(f"{repository}: "):
        check_repository_name(repository)
        huggingface_hub.HfApi().whoami()


def upload(folder: Path, repository: str, message: str, private: bool, branch: str | None) -> str:
    """Upload a folder as one commit, and return the repository's address.

    The repository is made if there is none, for its owner alone if `private`, and so is the branch;
    None is the main one.
    """
    import huggingface_hub

    api = huggingface_hub.HfApi()
    with _told(f"{repository}: "):
        address = api.create_repo(repository, private=private, exist_ok=True)
        if branch is not None:
            api.create_branch(repository, branch=branch, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=message, revision=branch
        )
    return str(address)


@contextmanager
def _told(place: str = "") -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except Exception as error:  # whatever a proxy or the library's client may raise
        first, *_ = (str(error).strip() or type(error).__name__).splitlines()
        reason = first.rstrip(".")
        if isinstance(error, errors.LocalTokenNotFoundError):
            reason = NOT_LOGGED_IN
        elif isinstance(error, errors.RepositoryNotFoundError):
            reason = "the hub has no such repository, or you have no access to it"
        elif isinstance(error, errors.RevisionNotFoundError):
            reason = "the repository has no such revision"
        elif isinstance(error, errors.HfHubHTTPError):
            reason = BY_STATUS.get(error.response.status_code, reason)
        raise HubError(f"{place}{reason}") from error
