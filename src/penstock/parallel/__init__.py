"""Several processes that compute one model: where they meet, what the first tells the others, and what they do then."""
