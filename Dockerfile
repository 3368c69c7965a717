# SPDX-License-Identifier: MIT
# The last stage has CUDA's libraries, and Shunt in front of NCCL in every program that the container starts:
#   docker build -t shunt . && docker run --rm --gpus all --ipc host shunt python3 train.py
# Build your own image on it, or copy /opt/shunt. The stage dev has what builds and tests need (.devcontainer/devcontainer.json).
ARG CUDA=13.0.1
ARG SYSTEM=ubuntu22.04

FROM nvidia/cuda:${CUDA}-devel-${SYSTEM} AS dev
RUN apt-get update \
	&& DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends build-essential ca-certificates git libcmocka-dev \
		libjansson-dev libsodium-dev ninja-build pkg-config python3 python3-pip python3-venv \
	&& rm -rf /var/lib/apt/lists/*
RUN pip3 install --no-cache-dir 'meson>=1.0'

FROM dev AS build
WORKDIR /src
COPY . .
RUN meson setup /build --prefix /opt/shunt --libdir lib -Dbuildtype=release -Dcuda=enabled -Dtests=disabled
RUN meson install -C /build --strip

FROM nvidia/cuda:${CUDA}-base-${SYSTEM}
COPY --from=build /opt/shunt /opt/shunt
ENV PATH=/opt/shunt/bin:$PATH
ENTRYPOINT ["shunt", "run", "--"]
CMD ["shunt", "doctor"]
