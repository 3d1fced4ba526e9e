# syntax=docker/dockerfile:1
#
#   docker build -t vllm-lite .                       CPU (the default)
#   docker build -t vllm-lite:cuda --target cuda .    NVIDIA; run with --gpus all
#
#   docker run --rm -p 8000:8000 -v vllm-lite-cache:/home/vllm/.cache vllm-lite demo
#   docker run --rm -p 8000:8000 -v /path/to/models:/models:ro vllm-lite /models/my-model
#
# Compilers stay in the build stages; the image that runs has Python and one virtual environment.

ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src

FROM build AS build-cpu
# torch first, and by itself, so that a change of the source does not fetch it again. To get its
# CPU-only build, name the index that has it: --build-arg TORCH_OPTIONS="--index-url URL".
ARG TORCH_OPTIONS=""
RUN pip install ${TORCH_OPTIONS} "torch==2.13.0"
COPY pyproject.toml README.md LICENSE ./
COPY csrc csrc
COPY vllm_lite vllm_lite
# Nothing on a CPU uses Triton: xgrammar asks for it for its kernels on GPUs.
RUN pip install . && pip uninstall --yes triton

FROM build AS build-cuda
# The default build of torch brings the CUDA libraries; the driver comes from the host. Attention is
# Triton's: --attention-backend CUDA needs nvcc here and -C cmake.define.VLLM_LITE_CUDA=ON below.
RUN pip install "torch>=2.11" "triton>=3.6"
COPY pyproject.toml README.md LICENSE ./
COPY csrc csrc
COPY vllm_lite vllm_lite
RUN pip install ".[gpu]"

FROM python:${PYTHON_VERSION}-slim AS runtime
RUN useradd --create-home --uid 1000 vllm \
    && install -d -o vllm -g vllm /home/vllm/.cache
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /home/vllm
EXPOSE 8000
# /health is 503 as soon as the engine is dead or stuck.
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
# SIGTERM drains: running requests finish, new ones get 503.
STOPSIGNAL SIGTERM
ENTRYPOINT ["vllm-lite", "serve"]
CMD ["demo"]

FROM runtime AS cuda
# Triton compiles its launchers with the C compiler it finds.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/venv /opt/venv
USER 1000

FROM runtime AS cpu
COPY --from=build-cpu /opt/venv /opt/venv
USER 1000
