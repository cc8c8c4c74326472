"""Who may ask, and how much: API keys, tenants, and which requests are taken on."""
