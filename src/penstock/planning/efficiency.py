"""What part of a device's limits an engine reaches, and what its steps cost beside."""

import msgspec


class Efficiency(msgspec.Struct, frozen=True):
    """Coefficients of the latency model.

    Attributes:
        weights: part of the memory's bandwidth at which weights are read, by kind of format.
        products: part of a device's rate that many rows reach, by kind of format.
        half_part: half of that is reached by this part of the rows with which multiplying takes as long as reading.
        overlap: of reading weights and multiplying by them, 1: one begins when the other ends; the larger, the nearer
            both together come to the longer of the two.
        cache: part of the bandwidth at which decodes read keys and values.
        attention: part of the rate in 16 bits that a prompt's attention reaches.
        link: part of a link's bandwidth.
        message_seconds: an all-reduce of two devices takes at least this, and as much more each time they double.
        layer_seconds: of a step for each layer, beside what it computes; `expert_seconds` more where it routes,
            `recurrent_seconds` more where it is recurrent.
        step_seconds, row_seconds, chunk_seconds: of a step, for each sequence that it decodes, and for each part of a
            prompt in it.
        stall: part of others' prompts that a decode waits for.
        first_layer_seconds: that a first token takes longer for each layer than its prompt's computation, on its way
            from a client and back.
        burst: part of others' prompts that a first token waits for: requests of a closed loop begin together, and so
            their ends come together too.
        waits: by what part of what they compute several take longer, since all wait for the slowest. Of devices, other
            coefficients have that in them.
    """

    weights: dict[str, float]
    products: dict[str, float]
    half_part: float
    overlap: float
    cache: float
    attention: float
    link: float
    message_seconds: float
    layer_seconds: float
    expert_seconds: float
    recurrent_seconds: float
    step_seconds: float
    row_seconds: float
    chunk_seconds: float
    stall: float
    first_layer_seconds: float
    burst: float
    waits: float = 0.0

    def together(self, reading: float, multiplying: float) -> float:
        """Seconds of both, which overlap: their norm of the order `overlap`."""
        shorter, longer = sorted((reading, multiplying))
        return float(longer * (1.0 + (shorter / longer) ** self.overlap) ** (1.0 / self.overlap)) if longer else 0.0
