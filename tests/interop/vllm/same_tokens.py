"""Whether vLLM's engine answers the same behind our wall as under vLLM's own. Runs in vLLM's environment.

    .interop/vllm/bin/python -m tests.interop.vllm.same_tokens MODEL_DIR

Greedy, float32, all prompts at once. Prints one JSON object; the exit code is 1 if a token differs.
"""

import json
import sys
from typing import Any

TOKENS = 64
SETTINGS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 2048}
PROMPTS = [[1, 504 + 11 * number, 2000 + number * number, 338, 253] for number in range(24)]
"""As token ids, so that no text comes between."""


def theirs(model: str) -> list[list[int]]:
    """vLLM's own front-end and process."""
    from vllm import LLM, SamplingParams

    llm = LLM(model, **SETTINGS)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
    found = [list(answer.outputs[0].token_ids) for answer in answers]
    llm.llm_engine.engine_core.shutdown()
    return found


def ours(model: str) -> list[list[int]]:
    """The same engine behind our wall."""
    import muro
    from muro.wire.request import EngineCoreRequest, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    found: list[list[int]] = [[] for _ in PROMPTS]
    with muro.connect(engine="vllm", model=model, options=dict[str, Any](SETTINGS)) as client:
        for number, prompt in enumerate(PROMPTS):
            client.add_request(EngineCoreRequest(str(number), prompt, sampling_params=params))
        left = len(PROMPTS)
        while left:
            for output in client.get_outputs().outputs:
                found[int(output.request_id)] += output.new_token_ids
                left -= output.finish_reason is not None
    return found


def main(model: str) -> int:
    mine, own = ours(model), theirs(model)
    same = [a == b for a, b in zip(mine, own, strict=True)]
    tokens = sum(map(len, own))
    print(json.dumps({"requests": len(own), "tokens": tokens, "requests_with_the_same_tokens": sum(same)}))
    return 0 if all(same) and tokens == TOKENS * len(PROMPTS) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
