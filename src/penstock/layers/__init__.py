"""Parts that models are declared from: each knows its weights and records its operations on a tape."""
