"""Files of the Hugging Face hub; what was fetched once is not fetched again."""

from pathlib import Path


class HubError(Exception):
    """Why a file could not be had, in one line without a full stop."""


def hub_file(repository: str, *names: str) -> Path:
    """Return the path of the first of the named files that exists, downloading it if new.

    Args:
        repository: Such as "someone/model", or "someone/model@REVISION" for a commit or tag.
        names: Of files in it.

    Raises:
        HubError: the hub is out of reach, or has no such repository or file.
    """
    repository, _, revision = repository.partition("@")
    cached = _cached(repository, names, revision or None)
    return _download(repository, names, revision or None) if cached is None else cached


def _cached(repository: str, names: tuple[str, ...], revision: str | None) -> Path | None:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    for name in names:
        try:
            path = huggingface_hub.try_to_load_from_cache(repository, name, revision=revision)
        except HFValidationError as error:
            raise HubError("there is no such folder") from error
        if isinstance(path, str):
            return Path(path)
    return None


def _download(repository: str, names: tuple[str, ...], revision: str | None) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        # One quick question first: the download itself would ask six times in half a minute.
        huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=5)
        for name in names:
            try:
                path = huggingface_hub.hf_hub_download(repository, name, revision=revision)
                return Path(path)
            except LocalEntryNotFoundError:  # the connection broke
                raise
            except EntryNotFoundError:
                continue
    except Exception as error:  # whatever the hub, its proxy or its client may raise
        message = str(error).strip() or type(error).__name__
        raise HubError(message.splitlines()[0].rstrip(".")) from error
    raise HubError(f"{repository} on the hub has no {' or '.join(names)}")
