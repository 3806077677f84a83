# syntax=docker/dockerfile:1
# Two stages: the first builds the environment from the lock file, the second carries it with the project.
FROM python:3.11-slim-bookworm AS build
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

FROM python:3.11-slim-bookworm
# make and git drive the pipeline; libgomp1 is XGBoost's; g++ is what TVM links tuned libraries with.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git libgomp1 make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 tencost
WORKDIR /app
COPY --from=build --chown=tencost:tencost /app/.venv .venv
COPY --chown=tencost:tencost . .
RUN .venv/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation -e . \
    && touch .venv/.locked .venv/.installed \
    && chown -R tencost:tencost /app
USER 1000
ENV PATH=/app/.venv/bin:$PATH
CMD ["make", "pipeline"]
