"""`cache_control` through all layers: the first request writes, the next one reads."""

from typing import Any

from anthropic import Anthropic

from support.live_server import RunningServer

MARK: Any = {"type": "ephemeral"}
HOUR: Any = {"type": "ephemeral", "ttl": "1h"}


def test_a_marked_prefix_is_written_once_and_read_from_then_on(server: RunningServer) -> None:
    system: Any = [
        {"type": "text", "text": "Nobody has sent this before. " * 12, "cache_control": HOUR},
        {"type": "text", "text": "Nor this, and it is short-lived. " * 12, "cache_control": MARK},
    ]
    with Anthropic(base_url=server.base, api_key="none", max_retries=0) as client:

        def usage(question: str, **fields: Any) -> Any:
            turns: Any = [{"role": "user", "content": question}]
            request: Any = {"model": "tiny-llama", "max_tokens": 3, "messages": turns, "system": system, **fields}
            with client.messages.stream(**request) as stream:
                return stream.get_final_message().usage

        before = server.metric("penstock_kv_blocks_kept")
        first, second = usage("And now?"), usage("What then?")
        unmarked = usage("And now?", system=system[0]["text"])
    written = first.cache_creation
    assert first.cache_read_input_tokens == 0
    assert written.ephemeral_1h_input_tokens > 0 and written.ephemeral_5m_input_tokens > 0
    total = written.ephemeral_1h_input_tokens + written.ephemeral_5m_input_tokens
    assert first.cache_creation_input_tokens == total
    assert (second.cache_read_input_tokens, second.cache_creation_input_tokens) == (total, 0)
    assert unmarked.cache_creation_input_tokens == 0
    for answer in (first, second):
        # Only whole blocks are kept.
        assert 0 < answer.input_tokens < 64
    assert server.metric("penstock_kv_blocks_kept") > before
