# A static program in an empty image.
#
#   docker build --build-arg TIDEGATE_REVISION=$(git rev-parse --short=12 HEAD) -t tidegate .
#   docker run -d --name tidegate --ulimit nofile=32768:32768 --stop-timeout 45 \
#     -v $PWD/config.toml:/etc/tidegate/config.toml:ro \
#     -e TIDEGATE_ADMIN__BIND=0.0.0.0:9180 -e TIDEGATE_ADMIN__TOKEN=$(cat tidegate.token) \
#     -p 8080:8080 -p 127.0.0.1:9180:9180 tidegate
#   docker kill --signal HUP tidegate      reloads the config
#
# config.toml must be readable for user 65532, and its [[listen]] must bind 0.0.0.0: loopback
# in a container is nobody else's. A scrape from outside needs the token, as in
#
#   curl -H "Authorization: Bearer $(cat tidegate.token)" http://127.0.0.1:9180/metrics
#
# docs/operating.md has the same for Prometheus.

# Alpine's target is musl, which links statically.
FROM rust:1.88-alpine AS build
RUN apk add --no-cache musl-dev make
WORKDIR /src
COPY . .
ARG TIDEGATE_REVISION=unknown
ENV TIDEGATE_REVISION=$TIDEGATE_REVISION
RUN cargo build --release --locked --bin tidegate

FROM scratch
COPY --from=build /src/target/release/tidegate /tidegate
USER 65532:65532
EXPOSE 8080 9180
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["/tidegate", "healthcheck"]
ENTRYPOINT ["/tidegate"]
CMD ["serve"]
