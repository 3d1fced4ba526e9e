"""Options of vLLM's benchmarks that have no effect here; `config.rows` says how a table is read."""

from __future__ import annotations

from typing import ClassVar

from vllm_lite.config.option import Option, config
from vllm_lite.config.rows import rows

INTERRUPTED = rows("""
[options, idle, first] a benchmark that is interrupted ends at once
shutdown_timeout int >=0 | Seconds that running requests may take to finish after SIGTERM.
""")

LATENCY = rows("""
[options, after num_iters] run the benchmark under a profiler such as py-spy or perf
profile bool | Profile one batch.
""")

THROUGHPUT = rows("""
[options, after prequeue_requests] leave it out: all requests of a benchmark are alike
enable_log_requests bool | Log each request's parameters.
[options] measure the model without it, or with it merged into the weights
lora_path str? | Adapter to apply.
[options, idle] there is no --lora-path to deal
lora_assignment random/round-robin =random | How adapters are dealt to requests.
[options] run the benchmark under a profiler such as py-spy or perf
profile bool | Profile the run.
""")


@config
class AbsentDatasetOptions:
    """What vLLM's datasets of the hub, of images and of sound are told."""

    GROUP: ClassVar[str] = "absent datasets"
    ROWS: ClassVar[tuple[Option, ...]] = rows("""
[absent datasets] save the dataset to a local file and use --dataset-name custom with
  --dataset-path
hf_subset str? | Subset of a hub dataset.
hf_split str? | Split of a hub dataset.
hf_name str? | Name of a hub dataset.
hf_output_len int? | Output tokens for a hub dataset.
[absent datasets, partial] save the dataset to a local file and use --dataset-name custom with
  --dataset-path
stream bool works:true =true | Load a hub dataset as a stream.
[absent datasets] save the dataset to a local file and use --dataset-name custom with
  --dataset-path
blazedit_min_distance float | blazedit: least edit distance.
blazedit_max_distance float =1.0 | blazedit: most edit distance.
bfcl_categories str? | Categories of function calls.
speed_bench_dataset_subset qualitative/throughput_1k/throughput_2k/throughput_8k/throughput_16k/
  throughput_32k =qualitative | Subset of speed_bench.
speed_bench_output_len int =4096 | Output tokens for speed_bench.
speed_bench_category str? | Category of speed_bench.
[absent datasets] only text is sent; use --dataset-name random or custom
enable_multimodal_chat bool | Send media as a chat's content.
custom_ensure_client_side_data bool | Fetch media before sending.
[absent datasets, partial] there is no dataset for ranking; use --dataset-name random
reranker bool works:true =true | random-rerank: the model ranks by itself.
[absent datasets] only text is sent; use --dataset-name random or custom
random_mm_base_items_per_request int =1 | random-mm: media in a request.
random_mm_num_mm_items_range_ratio float | random-mm: how far their number strays.
random_mm_limit_mm_per_prompt json ={"image": 255, "video": 1} | random-mm: most media.
random_mm_bucket_config str ={(256, 256, 1): 0.5, (720, 1280, 1): 0.5, (720, 1280, 16): 0.0} |
  random-mm: share of each size.
asr_min_audio_len_sec float | Shortest sound taken.
asr_max_audio_len_sec float? auto:no_limit | Longest sound taken.
""")
