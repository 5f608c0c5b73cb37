#!/bin/sh
# make check: formatting, vet, linters, go.mod, house rules. Prints what is
# wrong and fails; prints one line a step when all is well.
set -eu
[ $# = 0 ] || { echo "check: unexpected argument \"$1\"; usage: check.sh" >&2; exit 2; }
cd "$(dirname "$0")/../.."
GO=${GO:-go}

step() {
	echo "check: $1"
	shift
	"$@"
}

formatted() {
	gofmt=$(command -v gofmt || echo "$($GO env GOROOT)/bin/gofmt")
	files=$("$gofmt" -l -s .)
	[ -z "$files" ] || {
		echo "not formatted, run gofmt -s -w on:" >&2
		echo "$files" >&2
		return 1
	}
}

step gofmt formatted
# modules runs a command in each module: exanet-hostd is one of its own.
modules() {
	"$@"
	(cd hostd && "$@")
}

step "go vet" modules $GO vet ./...
step staticcheck modules "$($GO tool -n staticcheck)" ./...
step errorlint modules "$($GO tool -n go-errorlint)" -test=false ./...
step "go mod tidy" modules $GO mod tidy -diff
step "house rules" $GO test ./internal/house
