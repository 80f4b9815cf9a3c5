# syntax=docker/dockerfile:1
# Tollgate as an image: its console is built first, then the binary that carries it, and in the last stage is nothing but that binary, glibc, the authorities of
# the system and an unprivileged user.
#
#   docker build -t tollgate .
#   docker run --rm -p 8080:8080 -e TOLLGATE_DATA_AUTH=none tollgate

FROM node:20-bookworm-slim AS console
WORKDIR /src/console
COPY console/package.json console/package-lock.json ./
RUN --mount=type=cache,target=/root/.npm npm ci --no-fund --no-audit
COPY console .
RUN npm run build

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
COPY --from=console /src/console/dist console/dist
# The caches are the builder's own and stay out of the image, so the binary is copied out of them.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release --bin tollgate \
    && install -D -m 755 target/release/tollgate /out/usr/local/bin/tollgate \
    && install -d -m 700 /out/var/lib/tollgate

FROM gcr.io/distroless/cc-debian12:nonroot
LABEL org.opencontainers.image.title="Tollgate" \
      org.opencontainers.image.description="A distributed rate limiter" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build --chown=65532:65532 /out/var/lib/tollgate /var/lib/tollgate
COPY --from=build /out/usr/local/bin/tollgate /usr/local/bin/tollgate

COPY deploy/docker/tollgate.yaml /etc/tollgate/tollgate.yaml

ENV TOLLGATE_CONFIG=/etc/tollgate/tollgate.yaml
EXPOSE 8080 8081 8000
VOLUME /var/lib/tollgate
# By number, so that others can see that it is not root.
USER 65532:65532
# It drains on SIGTERM; give it limits.drain_delay_ms and limits.drain_timeout_ms and some seconds more.
STOPSIGNAL SIGTERM
# Kubernetes ignores it, and asks /healthz and /readyz.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/usr/local/bin/tollgate", "health", "--ready"]
ENTRYPOINT ["/usr/local/bin/tollgate"]
CMD ["serve"]
