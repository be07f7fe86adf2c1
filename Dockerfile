# Static programs in an empty image: the sidecar, the tools (tidegate-lab) and the lease server (tidegate-leases). The target
# `slim` has only the sidecar: docker build --target slim -t tidegate:slim .
#
#   docker build --build-arg TIDEGATE_REVISION=$(git rev-parse --short=12 HEAD) -t tidegate .
#   docker run -d --name tidegate --ulimit nofile=32768:32768 --stop-timeout 45 \
#     -v $PWD/config.toml:/etc/tidegate/config.toml:ro \
#     -e TIDEGATE_ADMIN__BIND=0.0.0.0:9180 -e TIDEGATE_ADMIN__TOKEN=$(cat tidegate.token) \
#     -p 8081:8081 -p 127.0.0.1:9180:9180 tidegate
#   docker kill --signal HUP tidegate      reloads the config
#
# User 65532 must be able to read config.toml, and [[listen]] must bind 0.0.0.0: loopback in a
# container is reachable only from inside it. A scrape from outside needs the token:
#
#   curl -H "Authorization: Bearer $(cat tidegate.token)" http://127.0.0.1:9180/metrics
#
# docs/how-to/operating.md shows the same for Prometheus.

# Alpine's target is musl, which links statically. A tag can move; a digest cannot. To build from
# a fixed image, find its digest and pass it:
#
#   docker buildx imagetools inspect rust:1.88-alpine --format '{{.Manifest.Digest}}'
#   docker build --build-arg BUILD_IMAGE=rust:1.88-alpine@sha256:... .
ARG BUILD_IMAGE=rust:1.88-alpine
FROM ${BUILD_IMAGE} AS build
RUN apk add --no-cache musl-dev make
WORKDIR /src

# The dependencies have their own layer: only a change of a manifest builds them again. Empty
# files replace our sources.
COPY Cargo.toml Cargo.lock ./
COPY crates/advice/Cargo.toml crates/advice/Cargo.toml
COPY crates/backends/Cargo.toml crates/backends/Cargo.toml
COPY crates/callers/Cargo.toml crates/callers/Cargo.toml
COPY crates/h1/Cargo.toml crates/h1/Cargo.toml
COPY crates/handover/Cargo.toml crates/handover/Cargo.toml
COPY crates/lab/Cargo.toml crates/lab/Cargo.toml
COPY crates/lease-server/Cargo.toml crates/lease-server/Cargo.toml
COPY crates/leases/Cargo.toml crates/leases/Cargo.toml
COPY crates/ledger/Cargo.toml crates/ledger/Cargo.toml
COPY crates/limits/Cargo.toml crates/limits/Cargo.toml
COPY crates/mapping/Cargo.toml crates/mapping/Cargo.toml
COPY crates/message/Cargo.toml crates/message/Cargo.toml
COPY crates/quota/Cargo.toml crates/quota/Cargo.toml
COPY crates/record/Cargo.toml crates/record/Cargo.toml
COPY crates/replay/Cargo.toml crates/replay/Cargo.toml
COPY crates/runtime/Cargo.toml crates/runtime/Cargo.toml
COPY crates/zvm/Cargo.toml crates/zvm/Cargo.toml
RUN sh -eu -c '\
    for manifest in . crates/*; do \
      mkdir -p "$manifest/src" "$manifest/benches" "$manifest/examples" "$manifest/tests/it"; \
      touch "$manifest/src/lib.rs" "$manifest/tests/it/main.rs"; \
      sed -n "/^\[\[bench\]\]/,/^name/s/^name = \"\(.*\)\"/benches\/\1/p; \
        /^\[\[example\]\]/,/^name/s/^name = \"\(.*\)\"/examples\/\1/p" "$manifest/Cargo.toml" | \
        while read -r name; do touch "$manifest/$name.rs"; done; \
    done; \
    for manifest in . crates/lab crates/lease-server; do echo "fn main() {}" >"$manifest/src/main.rs"; done; \
    cargo build --release --locked -p tidegate -p tidegate-lab -p tidegate-lease-server'

# The copied files keep their times, which may be older than the layer above.
COPY . .
ARG TIDEGATE_REVISION=unknown
ENV TIDEGATE_REVISION=$TIDEGATE_REVISION
RUN find src crates build.rs -type f -exec touch {} + && \
    for package in tidegate tidegate-lab tidegate-lease-server; do \
      cargo build --release --locked -p "$package" --bins || exit 1; \
    done

# Where `serve` writes its admin address for `healthcheck`.
RUN mkdir -p /out/run/tidegate

FROM scratch AS slim
COPY --from=build --chown=65532:65532 /out/run/ /run/
COPY --from=build /src/target/release/tidegate /tidegate
USER 65532:65532
EXPOSE 8081 9180
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["/tidegate", "healthcheck"]
ENTRYPOINT ["/tidegate"]
CMD ["serve"]

# The last stage is the default.
FROM slim
COPY --from=build /src/target/release/tidegate-lab /src/target/release/tidegate-leases /
