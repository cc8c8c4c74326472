"""Operations on tensors: signatures, torch references, faster implementations and the dispatch between them."""
