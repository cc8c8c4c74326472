"""From config.json to a declaration: which family reads which architecture."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.models import (
    bart,
    bert,
    cohere2,
    deepseek,
    distilbert,
    gemma2,
    gemma3,
    gemma4,
    glm,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    minimax,
    ministral3,
    mistral,
    mixtral,
    modernbert,
    mpnet,
    nomic_bert,
    olmo,
    olmoe,
    phi3,
    qwen,
    qwen_moe,
    smollm3,
    starcoder2,
    t5,
)
from penstock.models.classifiers import CLASSIFIERS
from penstock.models.declaration import ModelDeclaration
from penstock.models.wrappers import TEXT_PARTS, text_of


class Served(NamedTuple):
    """An architecture that can be served.

    Attributes:
        models: what it is known by.
        declare: reads the content of config.json.
    """

    models: str
    declare: Callable[[Mapping[str, Any]], ModelDeclaration]


# Encoders that were saved to guess masked words: their vectors do not need that head.
_SAVED_WITH_HEADS: dict[str, Callable[[Mapping[str, Any]], ModelDeclaration]] = {
    "BertForMaskedLM": bert.declare_bert,
    "BertForPreTraining": bert.declare_bert,
    "HF_ColBERT": bert.declare_bert,
    "RobertaForMaskedLM": bert.declare_roberta,
    "XLMRobertaForMaskedLM": bert.declare_xlm_roberta,
    "CamembertForMaskedLM": bert.declare_camembert,
    "DistilBertForMaskedLM": distilbert.declare,
    "MPNetForMaskedLM": mpnet.declare,
    "ModernBertForMaskedLM": modernbert.declare,
}

# Decoders that were saved without what makes logits of hidden states: what an embedder is published as.
_BODIES: dict[str, tuple[str, Callable[[Mapping[str, Any]], ModelDeclaration]]] = {
    "LlamaModel": ("Llama", llama.declare),
    "MistralModel": ("E5-Mistral, SFR-Embedding", mistral.declare),
    "Qwen2Model": ("Qwen2", qwen.declare_qwen2),
    "Qwen3Model": ("Qwen3-Embedding", qwen.declare_qwen3),
    "Gemma2Model": ("BGE-multilingual-Gemma2", gemma2.declare),
}


def _without_head(
    architecture: str, declare: Callable[[Mapping[str, Any]], ModelDeclaration]
) -> Callable[[Mapping[str, Any]], ModelDeclaration]:
    """What declares a decoder's body alone, which makes vectors and generates nothing."""

    def declared(config: Mapping[str, Any]) -> ModelDeclaration:
        whole = declare(config)
        decoder = replace(whole.decoder, head=None, generates=False)
        return replace(whole, architecture=architecture, decoder=decoder)

    return declared


SERVED: dict[str, Served] = {
    llama.ARCHITECTURE: Served("Llama 2 and 3.x, SmolLM2", llama.declare),
    mistral.ARCHITECTURE: Served("Mistral 7B", mistral.declare),
    ministral3.ARCHITECTURE: Served("Ministral 3", ministral3.declare),
    mixtral.ARCHITECTURE: Served("Mixtral", mixtral.declare),
    qwen.QWEN2: Served("Qwen2, Qwen2.5", qwen.declare_qwen2),
    qwen.QWEN3: Served("Qwen3", qwen.declare_qwen3),
    qwen_moe.QWEN2: Served("Qwen1.5-MoE, Qwen2-MoE", qwen_moe.declare_qwen2),
    qwen_moe.QWEN3: Served("Qwen3-MoE", qwen_moe.declare_qwen3),
    deepseek.V2: Served("DeepSeek-V2, V2-Lite and V2.5", deepseek.declare_v2),
    deepseek.V3: Served("DeepSeek-V3, V3.1 and R1", deepseek.declare_v3),
    deepseek.LITE: Served("GLM-4.7-Flash", deepseek.declare_lite),
    deepseek.MISTRAL4: Served("Mistral 4", deepseek.declare_mistral4),
    gemma2.ARCHITECTURE: Served("Gemma 2", gemma2.declare),
    gemma3.ARCHITECTURE: Served("Gemma 3", gemma3.declare),
    gemma3.EMBEDDING: Served("EmbeddingGemma", gemma3.declare),
    gemma4.ARCHITECTURE: Served("Gemma 4", gemma4.declare),
    phi3.ARCHITECTURE: Served("Phi-3, Phi-3.5, Phi-4", phi3.declare),
    gpt_oss.ARCHITECTURE: Served("gpt-oss 20B and 120B", gpt_oss.declare),
    glm.GLM: Served("GLM-4 9B of 2024", glm.declare),
    glm.GLM4: Served("GLM-4 9B and 32B of 2025", glm.declare_4),
    glm.MOE: Served("GLM-4.5, 4.6 and 4.7", glm.declare_moe),
    granite.DENSE: Served("Granite 3", granite.declare),
    granite.MOE: Served("Granite 3 MoE", granite.declare_moe),
    smollm3.ARCHITECTURE: Served("SmolLM3", smollm3.declare),
    olmo.OLMO2: Served("OLMo 2", olmo.declare_olmo2),
    olmo.OLMO3: Served("OLMo 3", olmo.declare_olmo3),
    olmoe.ARCHITECTURE: Served("OLMoE", olmoe.declare),
    cohere2.ARCHITECTURE: Served("Command R7B and A", cohere2.declare),
    starcoder2.ARCHITECTURE: Served("StarCoder2", starcoder2.declare),
    gpt_neox.ARCHITECTURE: Served("GPT-NeoX, Pythia", gpt_neox.declare),
    gpt2.ARCHITECTURE: Served("GPT-2", gpt2.declare),
    minimax.ARCHITECTURE: Served("MiniMax-M2", minimax.declare),
    bert.BERT: Served("BERT, MiniLM, BGE, E5", bert.declare_bert),
    bert.ROBERTA: Served("RoBERTa", bert.declare_roberta),
    bert.XLM_ROBERTA: Served("XLM-R, multilingual E5, BGE-M3", bert.declare_xlm_roberta),
    **{name: Served("the same, saved with its head", declare) for name, declare in _SAVED_WITH_HEADS.items()},
    distilbert.ARCHITECTURE: Served("DistilBERT", distilbert.declare),
    mpnet.ARCHITECTURE: Served("MPNet", mpnet.declare),
    nomic_bert.NOMIC: Served("Nomic Embed", nomic_bert.declare_nomic),
    nomic_bert.GTE: Served("GTE of 2024, multilingual too", nomic_bert.declare_gte),
    nomic_bert.GTE_IN_TRANSFORMERS: Served("GTE of 2024", nomic_bert.declare_gte),
    modernbert.ARCHITECTURE: Served("ModernBERT", modernbert.declare),
    bart.BART: Served("BART", bart.declare_bart),
    bart.MBART: Served("mBART, mBART-50", bart.declare_mbart),
    bart.MARIAN: Served("Marian, OPUS-MT", bart.declare_marian),
    bart.PEGASUS: Served("PEGASUS", bart.declare_pegasus),
    bart.M2M_100: Served("M2M-100, NLLB-200", bart.declare_m2m_100),
    t5.T5: Served("T5, FLAN-T5", t5.declare_t5),
    t5.MT5: Served("mT5", t5.declare_mt5),
    t5.UMT5: Served("umT5", t5.declare_umt5),
    bert.CAMEMBERT: Served("CamemBERT", bert.declare_camembert),
    **{name: Served(f"{models}, as an encoder", _without_head(name, one)) for name, (models, one) in _BODIES.items()},
    **{name: Served("rerankers and classifiers", declare) for name, declare in CLASSIFIERS.items()},
    **{name: Served(f"{part.models} (its text part)", text_of(name, part)) for name, part in TEXT_PARTS.items()},
}


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """The declaration of the model that `config` (the content of config.json) describes.

    Raises UnsupportedModel for an architecture or a value that is not implemented, naming it, and ModelFileError for
    values that are missing, malformed or contradict each other.
    """
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ModelFileError("config.json has no architectures, so the model's family is not known.")
    for name in names:
        if name in SERVED:
            return SERVED[name].declare(config)
    near = difflib.get_close_matches(names[0][:100], SERVED, n=3, cutoff=0.0)
    raise UnsupportedModel(
        f"config.json has architectures = {', '.join(names)[:200]}, which is not implemented; the nearest that are: "
        f"{', '.join(near)}. penstock models --supported lists all."
    )
