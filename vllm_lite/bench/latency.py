"""`bench latency`: how long one batch takes, prompt to last token, again and again."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from vllm_lite.beam_search_params import BeamSearchParams
from vllm_lite.bench.options.load import LatencyOptions
from vllm_lite.bench.plots import Plotter
from vllm_lite.bench.report import PERCENTILES, percentiles_json, show, write_json
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.engine.client import Prompt, PromptDict
from vllm_lite.errors import UsageError
from vllm_lite.llm import LLM
from vllm_lite.progress import progress_bar
from vllm_lite.sampling_params import SamplingParams

# Prompts are ids below this, or below the vocabulary's size.
_MAX_ID = 10_000


def run_latency(options: LatencyOptions, engine_args: EngineArgs) -> int:
    """Time the batches and print the figures; raises UsageError."""
    # Before the engine starts: what cannot work should not take so long to say so.
    plotter = Plotter() if options.plot is not None else None
    length = engine_args.create_engine_config("llm").model.max_model_len
    if length < options.input_len + options.output_len:
        raise UsageError(
            f"--input-len {options.input_len} and --output-len {options.output_len} do not fit "
            f"--max-model-len {length}"
        )
    given = dict(engine_args.given)
    # The same batch comes again and again: its prompts must be computed each time.
    given.setdefault("enable_prefix_caching", False)
    model = given.pop("model", engine_args.model)
    with LLM(model, **given) as llm:
        latencies = _time_batches(llm, options)
    figures = percentiles_json(latencies, PERCENTILES)
    average = float(np.mean(latencies))
    lines = [f"Avg latency: {average} seconds"]
    lines += [f"{p}% percentile latency: {value} seconds" for p, value in figures.items()]
    show("\n".join(lines))
    if options.output_json is not None:
        content = {
            "model_id": model,
            "avg_latency": average,
            "latencies": latencies,
            "percentiles": figures,
        }
        write_json(options.output_json, content)
    if plotter is not None and options.plot is not None:
        path = plotter.distributions({"Batch latency": latencies}, Path(options.plot))
        sys.stdout.write(f"Wrote {path}\n")
    return 0


def _time_batches(llm: LLM, options: LatencyOptions) -> list[float]:
    config = llm.llm_engine.config
    length = options.output_len
    params = SamplingParams(
        n=options.n,
        temperature=1.0,
        top_p=1.0,
        ignore_eos=True,
        max_tokens=length,
        detokenize=not options.disable_detokenize,
    )
    beams = BeamSearchParams(beam_width=options.n, max_tokens=length, ignore_eos=True)
    shape = (options.batch_size, options.input_len)
    rng = np.random.default_rng(config.model.seed)
    ids = rng.integers(0, min(_MAX_ID, config.facts.vocab_size), size=shape)
    prompts: list[Prompt] = [PromptDict(prompt_token_ids=row) for row in ids.tolist()]

    def batch() -> float:
        began = time.perf_counter()
        if options.use_beam_search:
            llm.beam_search(prompts, beams)
        else:
            llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - began

    for _ in progress_bar(range(options.num_iters_warmup), desc="Warmup iterations", leave=False):
        batch()
    latencies: list[float] = []
    with progress_bar(total=options.num_iters, desc="Bench iterations") as bar:
        while len(latencies) < options.num_iters:
            latencies.append(batch())
            bar.set_postfix_str(
                f"last {latencies[-1]:.3f} s, avg {np.mean(latencies):.3f} s", refresh=False
            )
            bar.update()
    return latencies
