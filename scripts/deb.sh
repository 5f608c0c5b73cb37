#!/bin/sh
# make deb: packs what make build, man and completion have made. DEB_DIR says
# where to, VERSION which; by default bin and the program's own.
set -eu
cd "$(dirname "$0")/.."
GO=${GO:-go}
dir=${DEB_DIR:-bin}
# Debian sorts 0.1.0~dev before 0.1.0.
VERSION=${VERSION:-$(bin/pfd --version | awk '{print $3}' | sed 's/-/~/; s/[^A-Za-z0-9.+~].*//')}
ARCH=$($GO env GOARCH)
export VERSION ARCH
GOFLAGS=-mod=mod $GO tool -modfile=tools/go.mod nfpm package --config contrib/nfpm.yaml --packager deb --target "$dir"
