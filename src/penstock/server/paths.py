"""Which paths of a server answer where others do not."""

from penstock.server.page.files import PAGE_FILES

_HEALTH = ("/health", "/health/live", "/health/ready")

# Without a key: for those who watch the server, and a page that asks for a key. They say nothing of what is served, but
# for the names of models where there are several, or to whom.
OPEN_PATHS = frozenset({*_HEALTH, *PAGE_FILES})
# Although there is no room for requests.
WATCHED_PATHS = frozenset(path.encode() for path in (*_HEALTH, "/metrics", "/v1/replica"))
# While the server ends: a client that watches it wants to see the end.
LAST_PATHS = frozenset({"/health/live", "/metrics", "/v1/stats", "/v1/replica"})
