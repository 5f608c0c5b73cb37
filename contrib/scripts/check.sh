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
step "go vet" $GO vet ./...
step staticcheck $GO tool staticcheck ./...
step errorlint $GO tool go-errorlint -test=false ./...
step "go mod tidy" $GO mod tidy -diff
step "house rules" $GO test ./internal/house
