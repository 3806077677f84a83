# syntax=docker/dockerfile:1
# Two images: `docker build .` makes that of the pipeline (the last stage: the environment of the lock file and the project),
# `docker build --target tuner .` a slim one that tunes with registered models and has neither torch nor DVC.
#
#   docker run -v "$PWD/data:/app/data" -v "$PWD/mlruns:/app/mlruns" tencost
#   docker run -p 127.0.0.1:5000:5000 -v "$PWD/mlruns:/app/mlruns" tencost tencost ui --host 0.0.0.0
#   docker build --build-arg DOCKER_TAG=lab/tencost:1.4 --tag lab/tencost:1.4 .     records say that tag, and a hash given by
#   docker run --env TENCOST_DOCKER_HASH="$(docker image inspect --format '{{.Id}}' lab/tencost:1.4)" ... lab/tencost:1.4
#   docker run -v "$PWD:/work" tencost-tuner tune network=saved network.path=network.npz hardware=local model_uri=...
#
# The base image is pinned, Python 3.11.16: logs of unrelated projects of 1 and 5 September 2026 name this digest for the tag.
# A newer one: docker buildx imagetools inspect python:3.11-slim-bookworm --format '{{.Manifest.Digest}}'
ARG PYTHON=python:3.11-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84

FROM $PYTHON AS tuner
WORKDIR /src
COPY pyproject.toml README.md LICENSE MANIFEST.in requirements.lock dvc.yaml ./
COPY conf conf
COPY src src
# g++ is what TVM links tuned libraries with; libgomp1 is XGBoost's. The lock file's versions hold, its hashes need all of it.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && grep -oE '^[a-z0-9._-]+==[^ ;]+' requirements.lock > /tmp/versions \
    && pip install --no-cache-dir --constraint /tmp/versions '.[tuner]' \
    && rm -rf /src/* /tmp/versions \
    && useradd --create-home --uid 1000 tencost \
    && install --directory --owner tencost /work
WORKDIR /work
USER 1000
VOLUME /work
ARG DOCKER_TAG=
ENV TENCOST_DOCKER_TAG=$DOCKER_TAG
ENTRYPOINT ["tencost"]
CMD ["--help"]

FROM $PYTHON AS build
WORKDIR /app
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# PyTorch's CPU index, for torch only; give an empty value to take whatever pip is configured to find.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY Makefile requirements.lock requirements-cuda.lock ./
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/* \
    && python -m venv .venv \
    && if [ -n "$TORCH_INDEX" ]; then \
         .venv/bin/pip install --no-deps --index-url "$TORCH_INDEX" "$(grep -o '^torch==[^ ]*' requirements.lock)"; \
       fi \
    && make .venv/.locked

FROM $PYTHON
# make and git drive the pipeline; libgomp1 is XGBoost's; g++ is what TVM links tuned libraries with.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git libgomp1 make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 tencost
WORKDIR /app
COPY --from=build --chown=tencost:tencost /app/.venv .venv
COPY --chown=tencost:tencost . .
# The image has no .git, without which DVC asks for core.no_scm.
RUN .venv/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation -e . \
    && touch .venv/.locked .venv/.installed \
    && .venv/bin/dvc config --local core.no_scm true \
    && mkdir -p data mlruns \
    && chown -R tencost:tencost /app
USER 1000
ARG DOCKER_TAG=
ENV PATH=/app/.venv/bin:$PATH TENCOST_DOCKER_TAG=$DOCKER_TAG
VOLUME ["/app/data", "/app/mlruns"]
EXPOSE 5000
CMD ["make", "pipeline"]
