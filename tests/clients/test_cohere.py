"""Cohere's client of both versions sorts documents by a query, unchanged."""

import json
import subprocess

from support.coding_agents import SECONDS, WatchedModel, find_agent
from support.seen_requests import Seen

_PROGRAM = """
import json, sys
import cohere

kind, url, fields = getattr(cohere, sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
answer = kind(api_key="none", base_url=url).rerank(model="scripted", **fields)
print(json.dumps([[each.index, each.relevance_score] for each in answer.results]))
"""


def test_both_versions_sort_documents(served: WatchedModel) -> None:
    python = find_agent("cohere")
    documents = ["a", "the quick brown fox jumps over the lazy dog", "the fox"]
    found = []
    for kind in ("ClientV2", "Client"):
        fields = json.dumps({"query": "the fox", "documents": documents, "top_n": 2})
        ended = subprocess.run(
            [str(python), "-c", _PROGRAM, kind, served.url, fields],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        found.append(json.loads(ended.stdout))
    assert served.asked() == [Seen("POST", path, 200, "application/json") for path in ("/v2/rerank", "/v1/rerank")]
    assert found[0] == found[1] and [index for index, _ in found[0]][0] == 2 and len(found[0]) == 2
    assert found[0][0][1] > found[0][1][1]
