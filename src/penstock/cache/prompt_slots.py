"""The slots that shelves have of a prompt once it is computed, by their names."""

from penstock.cache.keeps import Slot
from penstock.cache.manager import KVCache


def slots_of(cache: KVCache, tokens: list[int], salt: str, tenant: str) -> tuple[list[Slot], int]:
    """Those of a tenant's prompt, without its last token; and how many of the last are there for certain.

    Of the others some may be none: a group with records keeps a few. Nothing is changed; may be called on any thread.
    """
    chain = cache.open(-1, salt, tenant=tenant).chain
    chain.extend(tokens, len(tokens) - 1)
    groups = cache.spec.groups
    # Of a depth, what is written for certain comes last.
    ordered = sorted(range(len(groups)), key=lambda group: groups[group].record_interval is None)
    sure = sum(group.record_interval is None for group in groups)
    names = [(group, chain.kept_key(depth)) for depth in range(len(chain)) for group in ordered]
    return names, sure if names else 0
