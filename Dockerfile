# Penstock on the processor. Build: docker build -t penstock .
# Run: docker run --stop-timeout 60 -e PENSTOCK_API_KEY -p 8000:8000 -v penstock-cache:/var/cache/penstock penstock
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
# hadolint ignore=DL3008 # which g++ it is comes with the base image's release of Debian
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
# Torch comes first and alone: it is most of the image, and seldom changes.
COPY scripts/install.py scripts/install.py
COPY constraints.txt ./
RUN python scripts/install.py /opt/penstock --torch-only
COPY pyproject.toml README.md LICENSE ./
COPY native native
COPY src src
# What a gateway beside a database, stores and Envoy needs, and replicas that share prefixes.
ARG EXTRAS=envoy,gateway,kv-store,kv-events,otel
RUN /opt/penstock/bin/python -m pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"

FROM ${PYTHON}
RUN useradd --system --uid 10001 --create-home penstock \
    && install --directory --owner penstock /var/cache/penstock /var/cache/huggingface /var/lib/penstock
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH \
    HF_HOME=/var/cache/huggingface \
    PENSTOCK_CACHE=/var/cache/penstock \
    PENSTOCK_DATA=/var/lib/penstock
USER 10001
WORKDIR /home/penstock
# Downloaded models, packed weights, and what clients have stored.
VOLUME ["/var/cache/huggingface", "/var/cache/penstock", "/var/lib/penstock"]
EXPOSE 8000
# The first one drains: no new requests, and those that run have --drain-timeout (30 seconds) to finish.
STOPSIGNAL SIGTERM
# A model may take minutes to load or to download.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/ready', timeout=4)"]
ENTRYPOINT ["penstock"]
# It listens on every address of the container, so that it starts with API keys only, or with --no-auth.
CMD ["serve", "--host", "0.0.0.0"]
