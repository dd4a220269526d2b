# The sidecar and the load generator in one image, not run as root. Build: docker build -t vllm-goodput:0.1.0 .
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY .ci/locks/dev.txt ./
COPY sidecar ./sidecar
COPY loadgen ./loadgen
# The tested versions: names and versions of the lock file without its hashes, which pip would then want of "." too.
RUN sed -n 's/^\([A-Za-z0-9._-]*==[^ ;\\]*\).*/\1/p' dev.txt > constraints.txt \
    && python3 -m venv /app \
    && /app/bin/pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt ".[loadgen]"

FROM ${BASE}
COPY --from=build /app /app
ENV PATH="/app/bin:${PATH}" \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can check runAsNonRoot.
USER 65532:65532
EXPOSE 8000 9090
ENTRYPOINT ["goodput-sidecar"]
