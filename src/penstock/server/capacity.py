"""What an engine of a configuration can take on, as admission in front of it needs to know it."""

import random

from penstock.access.admission import AdmissionControl, QueueBounds
from penstock.access.limits import QUEUED_TIMES, Capacity
from penstock.core.config import BLOCK_SIZE, DEFAULT_MAX_NUM_SEQS, EngineConfig


def capacity_of(config: EngineConfig) -> Capacity:
    """What an engine of this configuration computes and holds at a time."""
    cache, limits = config.cache, config.scheduler
    if cache.spec.keeps_nothing:
        return Capacity(limits.max_num_seqs, limits.max_num_seqs * limits.max_model_len)
    pool = cache.num_blocks * cache.spec.block_size // cache.spec.growth
    return Capacity(limits.max_num_seqs, pool, cache.wish is not None)


def make_admission(bounds: QueueBounds, config: EngineConfig) -> AdmissionControl:
    """Admission to an engine of this configuration, with chance as it comes."""
    spec, chunk = config.cache.spec, config.scheduler.longest_chunk
    return AdmissionControl(bounds, lambda tokens: spec.blocks_for(tokens, chunk), random.random)


def default_admission() -> AdmissionControl:
    """Admission as it is with the default options, to an engine with blocks of the usual size."""
    bounds = QueueBounds(requests=QUEUED_TIMES * DEFAULT_MAX_NUM_SEQS, tokens=2**20)
    return AdmissionControl(bounds, lambda tokens: -(-tokens // BLOCK_SIZE), random.random)
