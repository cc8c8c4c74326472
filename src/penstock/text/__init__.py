"""Between text and token ids: tokenizer, chat template, token bytes, stop strings, incremental detokenization."""
