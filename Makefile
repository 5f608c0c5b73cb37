# make demo and make test are all that a user needs (README.md); CONTRIBUTING.md
# describes the rest. Both install what they miss: scripts/setup.sh.
GO ?= go
SETUP ?= sh scripts/setup.sh
FUZZTIME ?= 20s
# The commit stands in the programs' version where git can tell it.
VCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo auto || echo false)
# The race detector needs cgo; the programs themselves do not.
BUILD = CGO_ENABLED=0 $(GO) build -buildvcs=$(VCS)

.PHONY: all build demo test check race bench fuzz clean setup

all: build

build:
	$(BUILD) -o bin/ ./cmd/...

demo: setup
	@$(MAKE) --no-print-directory build
	@bin/exanetctl demo --bin bin

test: setup
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory race

# What runs before the tests, here and in CI.
check:
	sh scripts/check.sh

race:
	CGO_ENABLED=1 $(GO) test -race -timeout 9m ./...

bench: build
	@bin/exanetctl bench --pfd bin/pfd
	@bin/exanetctl bench-device --pfd bin/pfd

fuzz:
	sh scripts/fuzz.sh $(FUZZTIME)

setup:
	@$(SETUP)

clean:
	rm -rf bin .cache
	$(GO) clean -testcache
