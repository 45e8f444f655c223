"""What a simulated engine is asked for when it is killed: the same tokens come out, however often that happens."""

import muro
from muro.wire.request import OutputKind

SIM = {"step_us": 1000, "sequence_us": 0, "prefill_us_per_token": 0, "tokens": "sampled"}
SIM |= {"scheduling_policy": "priority", "max_num_seqs": 24}


def params_for(number: int) -> muro.SamplingParams:
    """Half of them greedy, half with a seed; some with stop strings, penalties, forbidden words."""
    return muro.SamplingParams(
        temperature=0.0 if number % 2 else 1.2,
        seed=number,
        max_tokens=150 + 7 * number,
        ignore_eos=True,
        stop=["zz", "qx"] if number % 8 == 0 else None,
        min_tokens=100,
        presence_penalty=0.5 if number % 3 == 0 else 0.0,
        frequency_penalty=0.2 if number % 4 == 1 else 0.0,
        repetition_penalty=1.2 if number % 5 == 2 else 1.0,
        bad_words=["e", "th"] if number % 3 == 1 else None,
        output_kind=OutputKind.DELTA,
    )
