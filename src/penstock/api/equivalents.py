"""What fields of other servers' APIs are called here: of llama.cpp's server, SGLang, Ollama, TGI, Cohere and Jina."""

import re
from collections.abc import Collection

_NAMES = re.compile(r"{([\w|]+)}")
_SAMPLER = "this sampler is not built; use {temperature}, top_p and top_k."
_NOT_NEEDED = "the server does this by itself; leave it out."

# Field → what to use, the rest of a sentence. Braces have names of a field by dialect; where a request has none of
# them, nothing is said.
EQUIVALENTS: dict[str, str] = {
    # llama.cpp
    "cache_prompt": "common prefixes are always cached; leave it out.",
    "dynatemp_exponent": _SAMPLER,
    "dynatemp_range": _SAMPLER,
    "dry_allowed_length": _SAMPLER,
    "dry_base": _SAMPLER,
    "dry_multiplier": _SAMPLER,
    "dry_penalty_last_n": _SAMPLER,
    "dry_sequence_breakers": _SAMPLER,
    "grammar": "use {structured_outputs} with grammar.",
    "id_slot": _NOT_NEEDED,
    "image_data": "only text is supported; leave it out.",
    "json_schema": "use {response_format|text|output_config} for a JSON schema.",
    "min_keep": _SAMPLER,
    "mirostat": _SAMPLER,
    "mirostat_eta": _SAMPLER,
    "mirostat_tau": _SAMPLER,
    "n_indent": "use {structured_outputs} with grammar.",
    "n_keep": "prompts are never truncated; leave it out.",
    "n_predict": "use {max_tokens|max_output_tokens}.",
    "n_probs": "use {logprobs}.",
    "parse_tool_calls": "calls are always parsed; start the server with --tool-call-parser none to have them as text.",
    "penalize_nl": "use {repetition_penalty}, presence_penalty and frequency_penalty.",
    "post_sampling_probs": "use {logprobs}.",
    "reasoning_format": "reasoning is told apart from the answer; leave it out.",
    "repeat_last_n": "use {repetition_penalty}, which counts all tokens.",
    "repeat_penalty": "use {repetition_penalty}.",
    "return_tokens": "use {return_token_ids}.",
    "samplers": _SAMPLER,
    "slot_id": _NOT_NEEDED,
    "t_max_predict_ms": "use {timeout}, in seconds.",
    "t_max_prompt_ms": "use {timeout}, in seconds.",
    "tfs_z": _SAMPLER,
    "timings_per_token": "use {stream_options}; penstock explain tells times.",
    "typical_p": _SAMPLER,
    "xtc_probability": _SAMPLER,
    "xtc_threshold": _SAMPLER,
    # SGLang
    "bootstrap_host": "prefill and decode run in one server; leave it out.",
    "bootstrap_port": "prefill and decode run in one server; leave it out.",
    "bootstrap_room": "prefill and decode run in one server; leave it out.",
    "custom_logit_processor": "use {logit_bias}, allowed_token_ids or structured_outputs.",
    "data_parallel_rank": "there is one replica; leave it out.",
    "ebnf": "use {structured_outputs} with grammar.",
    "input_ids": "send token ids as prompt to /v1/completions.",
    "lora_path": "adapters are not supported; leave it out.",
    "max_new_tokens": "use {max_tokens|max_output_tokens}.",
    "no_stop_trim": "use {include_stop_str_in_output}.",
    "regex": "use {structured_outputs} with regex.",
    "return_cached_tokens_details": "usage has prompt_tokens_details.cached_tokens; leave it out.",
    "return_hidden_states": "hidden states are not told; use /v1/embeddings.",
    "rid": "send an id as the header x-request-id.",
    "sampling_params": "send its members as fields of the request.",
    "separate_reasoning": "reasoning is told apart from the answer; leave it out.",
    "session_params": "common prefixes are always cached; leave it out.",
    "stop_regex": "use {stop|stop_sequences}.",
    "stream_reasoning": "reasoning is streamed; leave it out.",
    # Ollama
    "format": "use {response_format|text|output_config}.",
    "keep_alive": "the model stays loaded; leave it out.",
    "num_ctx": "the context is chosen at start, by --max-model-len.",
    "num_predict": "use {max_tokens|max_output_tokens}.",
    "options": "send its members as fields of the request.",
    "raw": "use /v1/completions.",
    "template": "use --chat-template when the server starts.",
    "think": "use {reasoning_effort|reasoning|output_config}.",
    # TGI
    "details": "use {logprobs} and return_token_ids.",
    "decoder_input_details": "use {prompt_logprobs}.",
    "do_sample": "use {temperature}; 0 takes the most likely token.",
    "inputs": "use {prompt|messages|input}.",
    "parameters": "send its members as fields of the request.",
    "return_full_text": "send echo to /v1/completions.",
    "top_n_tokens": "use {logprobs}.",
    "watermark": "watermarks are not supported; leave it out.",
    # Cohere, Jina, sentence-transformers
    "embedding_type": "use {output_dtype}.",
    "embedding_types": "use {output_dtype}, for one type.",
    "output_dimension": "use {dimensions}.",
    "prompt_name": "use {input_type}.",
    # vLLM
    "embed_dtype": "use {output_dtype}.",
    "guided_decoding_backend": "one backend compiles all grammars; leave it out.",
    "guided_whitespace_pattern": "white space in JSON is chosen by the server; leave it out.",
    "kv_transfer_params": "prefill and decode run in one server; leave it out.",
    "mm_processor_kwargs": "only text is supported; leave it out.",
    "request_id": "send an id as the header x-request-id.",
    "return_tokens_as_token_ids": "use {return_token_ids}.",
    "vllm_xargs": "fields of plugins are not supported; leave it out.",
}


def equivalent(name: str, known: Collection[str]) -> str | None:
    """What to use in the place of another server's field, in the words of a request with the fields `known`."""
    says = EQUIVALENTS.get(name)
    if says is None:
        return None
    found = _NAMES.search(says)
    if found is None:
        return says
    own = next((each for each in found[1].split("|") if each in known), None)
    return None if own is None else _NAMES.sub(own, says)
