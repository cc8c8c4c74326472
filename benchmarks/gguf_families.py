"""GGUF files of many architectures, read by Penstock and by llama.cpp: do both compute the same?

Small random models are written as llama.cpp's converter writes them, in float32 and as Q8_0. Of each position of a
prompt, longer than windows and original contexts, logits are compared. With float32 nothing is rounded but sums; with
Q8_0, llama.cpp rounds activations to 8 bits, too, and Penstock does not.

    PYTHONPATH=tests python benchmarks/gguf_families.py --python PYTHON

PYTHON is the interpreter of an environment with llama-cpp-python.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import reporting
import torch
from gguf import GGMLQuantizationType as Kind

from support import checkpoints
from support.families import BY_FAMILY
from support.gguf_files import ARCHITECTURES, IN_GGUF, write_gguf
from support.stepping import all_logits, make_stepper

# The tokenizer's, since llama.cpp takes no other number.
VOCABULARY = 268
POSITIONS = 151
READER = Path(__file__).parent / "peers" / "gguf_logits.py"
# llama.cpp has one eps for all norms, and transformers this one for those within latent attention.
_ONE_EPS = {"rms_norm_eps": 1e-6}
_OLMO3 = BY_FAMILY["olmo3"][1]["rope_parameters"]
_MISTRAL4 = BY_FAMILY["mistral4"][1]["rope_parameters"]


class Compared(NamedTuple):
    """Of a family, what is otherwise than in tests.

    Attributes:
        changes: of its configuration, where llama.cpp has no such models.
        metadata: what files of a published model leave llama.cpp to guess by the model's size, or do not say.
        whole: see `write_gguf`.
    """

    changes: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    whole: bool = False


COMPARED: dict[str, list[Compared]] = {
    # Groups of experts are scored there as DeepSeek-V3's; without `q_lora_rank` it knows models of 27 layers only.
    "deepseek_v2": [Compared({**_ONE_EPS, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "q_lora_rank": 64})],
    "deepseek_v3": [Compared(_ONE_EPS), Compared(_ONE_EPS, whole=True)],
    "glm4_moe_lite": [Compared(_ONE_EPS, {"deepseek2.expert_gating_func": 2})],
    "mistral4": [
        Compared(
            {
                **_ONE_EPS,
                "n_group": 1,
                "topk_group": 1,
                "rope_parameters": {**_MISTRAL4, "mscale": 1.0, "mscale_all_dim": 1.0},
            },
            {"mistral4.attention.temperature_scale": 0.1, "mistral4.attention.temperature_length": 64},
        )
    ],
    "ministral3": [Compared()],
    # It has no windows of Phi.
    "phi3": [Compared({"sliding_window": None})],
    "glm": [Compared(), Compared(whole=True)],
    "glm4": [Compared({"head_dim": 16}), Compared({"head_dim": 16}, whole=True)],
    "olmo2": [Compared({"head_dim": 16})],
    # Layers with a window turn by the others' base there.
    "olmo3": [
        Compared(
            {
                "head_dim": 16,
                "rope_parameters": {
                    "full_attention": {**_OLMO3["full_attention"], "attention_factor": None},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                },
            }
        )
    ],
    "cohere2": [Compared()],
    "starcoder2": [Compared()],
    "gpt_neox": [Compared()],
    "gpt2": [Compared()],
}


def compared(family: str, what: Compared, python: str, folder: Path) -> list[object]:
    """A row of the table: of float32 the largest difference of logits, of both kinds the share of likeliest tokens."""
    changes = {**IN_GGUF[family], **what.changes, "vocab_size": VOCABULARY}
    model = checkpoints.make(family, folder / "model", confident=True, **changes)
    luck = torch.Generator().manual_seed(0)
    ids = torch.randint(4, VOCABULARY, (POSITIONS,), generator=luck).tolist()
    tokens, result = folder / "tokens.json", folder / "logits"
    tokens.write_text(json.dumps(ids), encoding="utf-8")
    found: list[object] = []
    for kind in (Kind.F32, Kind.Q8_0):
        file = write_gguf(model, folder / f"{kind.name}.gguf", kind, whole=what.whole, **what.metadata)
        ours = all_logits(make_stepper(file), [ids], None)[0].numpy()
        subprocess.run([python, READER, file, tokens, result], check=True, stderr=subprocess.DEVNULL)
        theirs = np.frombuffer(result.read_bytes(), dtype=np.float32).reshape(ours.shape)
        same = np.mean(ours.argmax(1) == theirs.argmax(1))
        if kind is Kind.F32:
            found += [f"{np.abs(ours).max():.0f}", f"{np.abs(ours - theirs).max():.1e}"]
        found.append(f"{same:.1%}")
    how = ", projections as one" if what.whole else ""
    return [f"`{ARCHITECTURES[family]}`", f"{family}{how}", *found]


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--python", required=True, help="interpreter of an environment with llama-cpp-python")
    parser.add_argument("families", nargs="*", default=list(COMPARED), help="of these; otherwise all")
    arguments = parser.parse_args()
    rows = []
    for family in arguments.families:
        for what in COMPARED[family]:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(compared(family, what, arguments.python, Path(folder)))
    print(reporting.machine())
    header = ("architecture", "model", "largest logit", "difference", "likeliest the same", "with Q8_0")
    print(reporting.table(header, rows))


if __name__ == "__main__":
    main()
