"""Why a request took as long as it did: from its account to a timeline, its causes in seconds, and a verdict."""
