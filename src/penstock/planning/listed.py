"""List prices of devices and of APIs' models, with their dates.

`benchmarks/planning_prices.py` writes this file. Prices of models are a part of LiteLLM's price file (Copyright (c)
2023 Berri AI, MIT), those of devices were read in the sources that each row names.
"""

from penstock.planning.prices import ApiPrice, DevicePrice, PriceList

_SOURCE_1 = "https://www.mercatus-ai.com/blog/cloud-gpu-pricing, https://aimultiple.com/gpu-index"
_SOURCE_2 = "SemiAnalysisAI/InferenceX-app packages/app/src/lib/constants.ts@77ca49a"
_SOURCE_3 = "https://www.mercatus-ai.com/blog/cloud-gpu-pricing"
_SOURCE_4 = "skypilot-org/skypilot-catalog catalogs/v8/nebius/vms.csv"
_SOURCE_5 = "skypilot-org/skypilot-catalog catalogs/v8/runpod/vms.csv"
_SOURCE_6 = "skypilot-org/skypilot-catalog catalogs/v8/lambda/vms.csv"
_SOURCE_7 = "jax-ml/scaling-book applied-inference.md"
_AS_OF = "2026-11-01"
_MODELS = "litellm 1.110.2 wheel"


def _model(
    model: str, given: float, cached: float | None, made: float, discount: float = 0.0, deprecated: str = ""
) -> ApiPrice:
    """Dollars a million tokens: of input, of input that is cached, and of output."""
    return ApiPrice(given, made, cached, model, discount, deprecated, _AS_OF, _MODELS)


DEVICE_PRICES: tuple[DevicePrice, ...] = (
    DevicePrice("H100 SXM", "on-demand", 1.99, 2.95, 5.0, "2026-05-01", _SOURCE_1),
    DevicePrice("H100 SXM", "reserved", 1.3, 1.3, 1.3, "2026-04-03", _SOURCE_2),
    DevicePrice("H100 SXM", "own", 1.3, 1.495, 1.69, "2026-04-03", _SOURCE_2),
    DevicePrice("H200 SXM", "on-demand", 2.5, 4.0, 7.0, "2026-05-01", _SOURCE_3),
    DevicePrice("H200 SXM", "reserved", 1.6, 1.6, 1.6, "2026-04-03", _SOURCE_2),
    DevicePrice("H200 SXM", "own", 1.41, 1.575, 1.74, "2026-04-03", _SOURCE_2),
    DevicePrice("B200 SXM", "on-demand", 5.5, 5.5, 5.5, "2025-01-01", _SOURCE_4),
    DevicePrice("B200 SXM", "reserved", 2.9, 2.9, 2.9, "2026-04-03", _SOURCE_2),
    DevicePrice("B200 SXM", "own", 1.95, 2.145, 2.34, "2026-04-03", _SOURCE_2),
    DevicePrice("B300 SXM", "reserved", 3.48, 3.48, 3.48, "2026-04-03", _SOURCE_2),
    DevicePrice("B300 SXM", "own", 2.34, 2.574, 2.808, "2026-04-03", _SOURCE_2),
    DevicePrice("GB200", "reserved", 3.3, 3.3, 3.3, "2026-04-03", _SOURCE_2),
    DevicePrice("GB200", "own", 2.21, 2.48, 2.75, "2026-04-03", _SOURCE_2),
    DevicePrice("GB300", "reserved", 3.96, 3.96, 3.96, "2026-04-03", _SOURCE_2),
    DevicePrice("GB300", "own", 2.652, 2.976, 3.3, "2026-04-03", _SOURCE_2),
    DevicePrice("A100 80GB SXM", "on-demand", 0.8, 1.3, 3.0, "2026-05-01", _SOURCE_3),
    DevicePrice("A100 80GB PCIe", "on-demand", 1.39, 1.39, 1.39, "2026-01-01", _SOURCE_5),
    DevicePrice("L40S", "on-demand", 1.55, 1.55, 1.55, "2025-01-01", _SOURCE_4),
    DevicePrice("RTX A6000", "on-demand", 1.09, 1.09, 1.09, "2026-01-01", _SOURCE_6),
    DevicePrice("V100 SXM2", "on-demand", 0.79, 0.79, 0.79, "2026-01-01", _SOURCE_6),
    DevicePrice("MI300X", "reserved", 1.55, 1.55, 1.55, "2026-04-03", _SOURCE_2),
    DevicePrice("MI300X", "own", 1.12, 1.26, 1.4, "2026-04-03", _SOURCE_2),
    DevicePrice("MI325X", "reserved", 1.8, 1.8, 1.8, "2026-04-03", _SOURCE_2),
    DevicePrice("MI325X", "own", 1.28, 1.435, 1.59, "2026-04-03", _SOURCE_2),
    DevicePrice("MI355X", "reserved", 2.1, 2.1, 2.1, "2026-04-03", _SOURCE_2),
    DevicePrice("MI355X", "own", 1.48, 1.69, 1.9, "2026-04-03", _SOURCE_2),
    DevicePrice("TPU v5e", "on-demand", 1.2, 1.2, 1.2, "2025-02-01", _SOURCE_7),
    DevicePrice("TPU v5p", "on-demand", 4.2, 4.2, 4.2, "2025-02-01", _SOURCE_7),
)
API_PRICES: tuple[ApiPrice, ...] = (
    _model("gpt-4.1", 2.0, 0.5, 8.0, 0.5, "2027-01-14"),
    _model("gpt-4.1-mini", 0.4, 0.1, 1.6, 0.5, "2027-01-14"),
    _model("gpt-4o", 2.5, 1.25, 10.0, 0.5, "2027-01-14"),
    _model("gpt-4o-mini", 0.15, 0.075, 0.6, 0.5, "2027-01-14"),
    _model("gpt-5", 1.25, 0.125, 10.0, 0.5, "2026-12-11"),
    _model("gpt-5-mini", 0.25, 0.025, 2.0, 0.5, "2026-12-11"),
    _model("gpt-5-nano", 0.05, 0.005, 0.4, 0.5, "2026-12-11"),
    _model("gpt-5.4", 2.5, 0.25, 15.0, 0.5),
    _model("gpt-5.4-mini", 0.75, 0.075, 4.5, 0.5),
    _model("gpt-5.6", 4.0, 0.4, 20.0, 0.5),
    _model("gpt-5.6-luna", 0.2, 0.02, 1.2, 0.5),
    _model("gpt-6-luna", 0.1, 0.01, 0.5, 0.5),
    _model("gpt-6-sol", 2.0, 0.2, 10.0, 0.5),
    _model("gpt-6.1-sol", 2.0, 0.1, 10.0, 0.5),
    _model("gpt-6.1-terra", 1.0, 0.05, 5.0, 0.5),
    _model("gpt-6-astra", 10.0, 1.0, 50.0, 0.5),
    _model("claude-haiku-4-5", 1.0, 0.1, 5.0, 0.5),
    _model("claude-haiku-5-5", 0.1, 0.01, 0.5, 0.5),
    _model("claude-sonnet-4-5", 3.0, 0.3, 15.0, 0.5, "2026-11-30"),
    _model("claude-sonnet-5-5", 2.0, 0.1, 10.0, 0.5),
    _model("claude-opus-4-8", 5.0, 0.5, 25.0, 0.5),
    _model("claude-opus-5-5", 4.0, 0.2, 20.0, 0.5),
    _model("gemini/gemini-2.5-flash", 0.3, 0.03, 2.5, 0.5, "2026-12-01"),
    _model("gemini/gemini-2.5-pro", 1.25, 0.125, 10.0, 0.5, "2026-12-01"),
    _model("gemini/gemini-3.5-flash-lite", 0.3, 0.03, 2.5, 0.5),
    _model("gemini/gemini-3.8-flash", 0.75, 0.075, 3.75, 0.5),
    _model("gemini/gemini-3.1-pro-preview", 2.0, 0.2, 12.0, 0.5),
    _model("gemini/gemini-4-argon", 2.0, 0.1, 10.0, 0.5),
    _model("gemini/gemini-4-hydrogen", 1.5, 0.075, 7.5, 0.5),
    _model("mistral/mistral-large-4", 0.7, 0.07, 2.1),
    _model("mistral/mistral-medium-3.5", 1.5, 0.15, 7.5),
    _model("mistral/mistral-small-latest", 0.15, 0.015, 0.6),
    _model("mistral/open-mistral-nemo", 0.3, 0.03, 0.3),
    _model("deepseek/deepseek-chat", 0.28, 0.028, 0.42, 0.0, "2026-07-24"),
    _model("deepseek/deepseek-v4-flash", 0.3, 0.006, 1.2),
    _model("deepseek/deepseek-v4-pro", 1.32, 0.044, 3.96),
    _model("xai/grok-4.3", 1.25, 0.2, 2.5, 0.2),
    _model("xai/grok-4.7", 2.0, 0.5, 6.0, 0.2),
    _model("command-a-03-2025", 2.5, None, 10.0),
    _model("command-r7b-12-2024", 0.0375, None, 0.15),
    _model("moonshot/kimi-k2.6", 0.95, 0.16, 4.0),
    _model("moonshot/kimi-k3", 3.0, 0.3, 15.0),
    _model("zai/glm-5.3", 1.4, 0.26, 4.4),
    _model("zai/glm-5.3-flash", 0.15, 0.03, 0.5),
    _model("minimax/MiniMax-M3", 0.3, 0.06, 1.2),
    _model("deepinfra/meta-llama/Meta-Llama-3.1-8B-Instruct", 0.03, None, 0.05),
    _model("deepinfra/meta-llama/Llama-3.3-70B-Instruct", 0.23, None, 0.4),
    _model("deepinfra/meta-llama/Llama-3.3-70B-Instruct-Turbo", 0.1, None, 0.32),
    _model("deepinfra/Qwen/Qwen2.5-72B-Instruct", 0.36, None, 0.4),
    _model("deepinfra/Qwen/Qwen3-32B", 0.08, None, 0.28),
    _model("deepinfra/Qwen/Qwen3-30B-A3B", 0.12, None, 0.5),
    _model("deepinfra/Qwen/Qwen3-235B-A22B-Instruct-2507", 0.09, None, 0.55),
    _model("deepinfra/google/gemma-3-27b-it", 0.08, None, 0.16),
    _model("deepinfra/deepseek-ai/DeepSeek-V3.2", 0.26, 0.13, 0.38),
    _model("deepinfra/deepseek-ai/DeepSeek-R1-0528", 0.5, 0.35, 2.15),
    _model("deepinfra/openai/gpt-oss-120b", 0.037, None, 0.17),
    _model("deepinfra/openai/gpt-oss-20b", 0.03, None, 0.14),
    _model("together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo", 1.04, None, 1.04, 0.0, "2026-10-22"),
    _model("together_ai/openai/gpt-oss-120b", 0.15, None, 0.6),
    _model("groq/openai/gpt-oss-120b", 0.15, 0.075, 0.6),
    _model("groq/openai/gpt-oss-20b", 0.075, 0.0375, 0.3),
    _model("cerebras/gpt-oss-120b", 0.35, None, 0.75),
    _model("cerebras/llama-3.1-8b", 0.1, None, 0.1),
    _model("nebius/meta-llama/Meta-Llama-3.1-8B-Instruct", 0.02, None, 0.06),
    _model("nebius/meta-llama/Llama-3.3-70B-Instruct", 0.13, None, 0.4),
    _model("nebius/meta-llama/Meta-Llama-3.1-405B-Instruct", 1.0, None, 3.0),
    _model("nebius/Qwen/Qwen3-32B", 0.1, None, 0.3),
    _model("nebius/Qwen/Qwen3-30B-A3B", 0.1, None, 0.3),
    _model("novita/meta-llama/llama-3.3-70b-instruct", 0.135, None, 0.4),
)
LISTED = PriceList("the list of Penstock", DEVICE_PRICES, API_PRICES)
