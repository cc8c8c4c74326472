"""OpenAI's completions, chats and vectors, with the fields of vLLM."""
