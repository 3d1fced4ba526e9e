"""Write each rank's part of a model's weights once, so that later starts read no more than that.

Run: python examples/save_sharded_state.py MODEL_DIRECTORY OUTPUT_DIRECTORY [RANKS]
"""

import shutil
import sys
from pathlib import Path

from vllm_lite import LLM, SamplingParams

WEIGHTS = {".safetensors", ".bin", ".pt", ".gguf"}


def main() -> None:
    model, output = sys.argv[1], Path(sys.argv[2])
    ranks = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    options = {"max_model_len": 64, "tensor_parallel_size": ranks}
    output.mkdir(parents=True, exist_ok=True)
    with LLM(model, **options) as llm:
        llm.save_sharded_state(str(output))
    for file in Path(model).iterdir():
        if file.is_file() and file.suffix not in WEIGHTS and "index" not in file.name:
            shutil.copy(file, output)
    print(*sorted(file.name for file in output.glob("*.safetensors")), sep="\n")
    with LLM(str(output), load_format="sharded_state", **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=4)
        print(llm.generate("The capital of France is", params)[0].outputs[0].text)


if __name__ == "__main__":
    main()
