# One image for Dagster's three processes and for the command line. See docs/deployment.md.
FROM python:3.11-slim-bookworm

# Not pinned: security updates of Debian are more important than a fixed version of Java.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/gc-assets
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY gc_assets gc_assets
RUN pip install --no-cache-dir -c constraints.txt '.[iceberg,iceberg-fast,icechunk,lakefs,nessie,ui,postgres]'

# A new volume at /data has the owner of this directory.
RUN useradd --uid 1000 --create-home collector && install -d -o collector -g collector /data /opt/dagster
COPY deploy/dagster.yaml deploy/workspace.yaml /opt/dagster/
ENV DAGSTER_HOME=/opt/dagster
USER 1000
WORKDIR /data
CMD ["dagster", "code-server", "start", "-h", "0.0.0.0", "-p", "4000", "-m", "gc_assets.definitions", "--location-name", "lake_gc"]
