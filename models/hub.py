"""Files of the Hugging Face hub; what was fetched once is not fetched again."""

from pathlib import Path


class HubError(Exception):
    """Why a file could not be had, in one line without a full stop."""


def hub_file(repository: str, *names: str) -> Path:
    """Return the path of the first of the named files that exists, downloading it if new.

    Raises:
        HubError: the hub is out of reach, or has no such repository or file.
    """
    cached = _cached(repository, names)
    return _download(repository, names) if cached is None else cached


def _cached(repository: str, names: tuple[str, ...]) -> Path | None:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    for name in names:
        try:
            path = huggingface_hub.try_to_load_from_cache(repository, name)
        except HFValidationError as error:
            raise HubError("there is no such folder") from error
        if isinstance(path, str):
            return Path(path)
    return None


def _download(repository: str, names: tuple[str, ...]) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        # One quick question first: the download itself would ask six times in half a minute.
        huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=5)
        for name in names:
            try:
                return Path(huggingface_hub.hf_hub_download(repository, name))
            except LocalEntryNotFoundError:  # the connection broke
                raise
            except EntryNotFoundError:
                continue
    except Exception as error:  # whatever the hub, its proxy or its client may raise
        message = str(error).strip() or type(error).__name__
        raise HubError(message.splitlines()[0].rstrip(".")) from error
    raise HubError(f"{repository} on the hub has no {' or '.join(names)}")
