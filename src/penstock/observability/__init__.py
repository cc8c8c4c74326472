"""Facts about requests and the engine, and how they are told to others."""
