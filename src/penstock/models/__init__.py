"""Model families: each reads its configuration and declares itself over the shared layers. Nothing here needs torch."""
