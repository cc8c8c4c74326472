"""Asks a server for vectors of texts with the clients that people use, and prints them by the client's name, as JSON.

    python embedders.py ADDRESS MODEL TEXT…

It runs in an environment of its own (`make clients`), without a network.
"""

import json
import sys

from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai import OpenAIEmbedding
from openai import OpenAI

ADDRESS, MODEL, *TEXTS = sys.argv[1:]


def with_openai() -> list[list[float]]:
    made = OpenAI(base_url=ADDRESS, api_key="unused").embeddings.create(model=MODEL, input=TEXTS)
    return [each.embedding for each in made.data]


def with_langchain() -> list[list[float]]:
    # Else it makes tokens of texts by itself, as OpenAI's models have them.
    client = OpenAIEmbeddings(base_url=ADDRESS, api_key="unused", model=MODEL, check_embedding_ctx_length=False)
    return [*client.embed_documents(TEXTS[1:]), client.embed_query(TEXTS[0])]


def with_llama_index() -> list[list[float]]:
    client = OpenAIEmbedding(api_base=ADDRESS, api_key="unused", model_name=MODEL)
    return [*client.get_text_embedding_batch(TEXTS[1:]), client.get_query_embedding(TEXTS[0])]


def with_haystack() -> list[list[float]]:
    settings = {"api_base_url": ADDRESS, "api_key": Secret.from_token("unused"), "model": MODEL}
    documents = OpenAIDocumentEmbedder(**settings).run([Document(content=text) for text in TEXTS[1:]])["documents"]
    return [*(each.embedding for each in documents), OpenAITextEmbedder(**settings).run(TEXTS[0])["embedding"]]


if __name__ == "__main__":
    asked = {"openai": with_openai(), "langchain-openai": with_langchain()}
    asked |= {"llama-index-embeddings-openai": with_llama_index(), "haystack-ai": with_haystack()}
    # All others ask for the first text last.
    first, *rest = asked["openai"]
    print(json.dumps({**asked, "openai": [*rest, first]}))
