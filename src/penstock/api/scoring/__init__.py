"""The dialects of scores and classes: those of Jina, Cohere and vLLM, and of Text Embeddings Inference (TEI)."""
