# A kernel as an ordinary user in a container. CI doesn't build this image; it checks the commands.
# Which flags `docker run` needs, and for which layer: docs/how-to/run-in-a-container.md
FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE /usr/src/agentos/
COPY agentos /usr/src/agentos/agentos
COPY supervisors /usr/src/agentos/supervisors
COPY sdk /usr/src/agentos/sdk
COPY demos /usr/src/agentos/demos
RUN python3 -m venv /opt/agentos \
 && /opt/agentos/bin/pip install --no-cache-dir /usr/src/agentos \
 && rm -r /usr/src/agentos
RUN useradd --system --home-dir /var/lib/agentos agentos \
 && install -d -o agentos -g agentos /run/agentos /var/lib/agentos
ENV PATH=/opt/agentos/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV AGENTOS_SOCKET=/run/agentos/agentos.sock
WORKDIR /etc/agentos
USER agentos
ENTRYPOINT ["agentos"]
CMD ["run", "agentos.toml", "--state-dir", "/var/lib/agentos"]
