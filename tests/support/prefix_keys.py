"""Keys of a prefix, for this process or another, which needs nothing else for it."""

from pathlib import Path

from penstock.assembly.build import build_engine
from penstock.assembly.prepare import prepare
from penstock.cache.chain import PrefixChain
from penstock.configuration.options import EngineOptions

TOKENS = list(range(40))


def keys(model: Path, salt: str = "", **options: str | None) -> list[bytes]:
    """Those of some tokens, in a server that has just started."""
    asked = EngineOptions.of(model=str(model), threads=1, **{"packed_cache": "off", **options})
    core = build_engine(prepare(asked, api_beside=False).config, lambda done, total: None).core
    chain: PrefixChain = core.scheduler.cache.open(0, salt).chain
    chain.extend(TOKENS, len(TOKENS))
    return [chain.key(index) for index in range(len(chain))]
