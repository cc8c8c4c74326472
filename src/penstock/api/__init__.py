"""The dialects of the API, and what they share: a body becomes a job, a job runs, its outputs become an answer."""
