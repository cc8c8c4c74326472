"""Whether requests share prefixes, and with whom."""

from penstock.configuration.options import CacheOptions
from penstock.configuration.reasons import Note
from penstock.core.config import KEPT_SHARE


def resolve_sharing(cache: CacheOptions, note: Note) -> tuple[bool, str | None]:
    """Whether prefixes are shared, and the file with the secret of their keys."""
    why = "as asked: every prompt is computed"
    if cache.enable_prefix_caching:
        why = f"equal prefixes share their KV; up to {KEPT_SHARE:.0%} of the pool is kept where clients ask for it"
    note("enable prefix caching", cache.enable_prefix_caching, why)
    file, why = cache.prefix_secret_file, "each start has a secret of its own, unless PENSTOCK_PREFIX_SECRET has one"
    if file is not None:
        why = "processes with this secret, and equal weights, have the same keys of prefixes"
    note("prefix secret file", file or "none", why)
    return cache.enable_prefix_caching, file
