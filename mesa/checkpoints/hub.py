"""Whether a model of the hub is there: asked once and briefly, before anything that takes long is imported."""

from __future__ import annotations

from functools import cache

from mesa.errors import NotFound, Refused

PATIENCE = 5
"""Seconds that the hub has for an answer."""


@cache
def cache_only(name: str, revision: str | None = None) -> bool:
    """Whether a model can be read from the local cache alone, as the hub cannot be reached.

    Raises Refused for a name that no model can have, FileNotFoundError for one that neither the hub nor the cache has.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    cached, why = False, ""
    try:
        cached = isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
        why = "HF_HUB_OFFLINE is set"
        if not constants.HF_HUB_OFFLINE:
            HfApi().model_info(name, revision=revision, timeout=PATIENCE)
            return False
    except HFValidationError:
        raise Refused(
            f"{name!r} is neither a folder here nor a hub id; give a folder, a .gguf file or a hub id"
        ) from None
    except RevisionNotFoundError:
        raise NotFound(f"model {name!r} has no revision {revision!r} on the hub; see its branches and tags") from None
    except RepositoryNotFoundError:
        raise NotFound(
            f"no model {name!r} in a folder or on the hub, or not for you (`hf auth login`); give a folder, a .gguf "
            "file or a hub id"
        ) from None
    except Exception as error:  # whatever the client in use raises where there is no network
        why = " ".join(str(error).split()) or type(error).__name__
    if cached:
        return True
    raise NotFound(
        f"no model {name!r} in a folder or in the cache {constants.HF_HUB_CACHE}, and the hub cannot be reached "
        f"({why}); give default, nope, alibi, smollm2, a folder or a .gguf file"
    )
