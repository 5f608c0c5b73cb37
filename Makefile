# make demo and make test are all that a user needs (README.md); CONTRIBUTING.md
# describes the rest. Both install what they miss: contrib/scripts/setup.sh.
GO ?= go
SETUP ?= sh contrib/scripts/setup.sh
FUZZTIME ?= 20s
# The commit stands in the programs' version where git can tell it.
VCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo auto || echo false)
# The race detector needs cgo; the programs themselves do not.
# No path of this machine stands in them: packages are the same wherever they are made.
BUILD = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=$(VCS)

TESTS = test guests guests-race check seeds mutants faultpoints soak mpi hosts loaded race hostd-race

.PHONY: $(TESTS) all build demo bench mpi-bench pgo pictures fuzz clean setup c generate man completion deb

all: build

build: setup
	$(BUILD) -o bin/ ./cmd/...
	cd hostd && $(BUILD) -o ../bin/exanet-hostd .

demo: build
	@bin/exanetctl demo --bin bin

test: SETUP += test
test: setup
	@sh contrib/scripts/test.sh check seeds mutants hostd-race race guests-race

# All tests with virtual machines, those included for which modules and tests are built
# from the kernel's sources; nothing is skipped.
guests: SETUP += guests
guests: setup
	STRICT=1 $(GO) test -count=1 -timeout 60m -v ./internal/guests

# A build of pfd by its profile compiles all packages for pfd alone. Nothing that the tests
# assert depends on it, so they and the programs that they build do without.
$(TESTS): export GOFLAGS := $(strip $(GOFLAGS) -pgo=off)

# What runs before the tests, here and in CI.
check:
	sh contrib/scripts/check.sh

# 10,000 seeded scenarios of the whole firmware, and as many in which nothing stays
# as it is, without the race detector: it
# would take ten times as long. `race` runs 300 of them with it.
seeds:
	GOGC=400 PFD_FABRIC=10000 PFD_CHURN=10000 PFD_TREES=2000 CGO_ENABLED=0 $(GO) test -count=1 -timeout 9m -run 'TestFabric$$|TestChurn$$|TestTrees$$' ./internal/sim
	PFD_DHT=2000 CGO_ENABLED=0 $(GO) test -count=1 -timeout 5m -run 'TestSimulated$$' ./dht

# Mutants of the firmware: each must be noticed; the mean number of seeds is told.
mutants:
	PFD_MUTANTS=1 CGO_ENABLED=0 $(GO) test -count=1 -timeout 9m -v -run 'TestMutants$$' ./internal/sim/...

# Every system call that pfd makes fails once in turn, with each error that matters.
faultpoints:
	PFD_FAULTPOINTS=all CGO_ENABLED=0 $(GO) test -count=1 -timeout 90m -v -run 'TestEverySystemCallFailsOnce$$' ./internal/hostile

# What needs a quiet machine, or long: not in CI.
soak:
	PFD_SOAK=1 CGO_ENABLED=0 $(GO) test -count=1 -timeout 90m -v -run '$(SOAK)' $(SOAKS)
SOAK ?= TestJudges$$|TestUrgentAndLargeTransfers$$|TestHolesInSharedMemory$$|TestMessageStorm$$|TestWindowWithdrawnUnderLoad$$|TestRingPingPong$$|TestNothingIsLeft$$|TestSpans$$|TestSimulation$$
SOAKS ?= ./internal/tracing ./internal/hostile ./rdma ./stream

# Hosts as network namespaces, longer than in CI: 1,000 cuts, stops of 30 s, 10,000 writes and reads.
hosts:
	PFD_HOSTS=1 CGO_ENABLED=0 $(GO) test -count=1 -timeout 90m -v ./internal/hosts
	PFD_HOSTS=1 CGO_ENABLED=0 $(GO) test -count=1 -timeout 60m -v -run 'Test(BetweenHosts|HostThatLiesAboutTrees)$$' ./internal/hostile
	PFD_HOSTS=1 CGO_ENABLED=0 $(GO) test -count=1 -timeout 20m -v -run 'Test(ManyHosts|IdleCrossingTCP)$$' ./link

# MPI programs over the libfabric provider, to their ends: not in CI. setup.sh mpi installs them.
mpi: SETUP += mpi
mpi: setup
	PFD_MPI=1 CGO_ENABLED=0 $(GO) test -count=1 -timeout 40m -v ./internal/mpi

# The table of docs/benchmarks.md, on an idle machine: some minutes.
mpi-bench: SETUP += mpi
mpi-bench: setup
	EXANET_DOCS=$(CURDIR)/docs PFD_MPI_BENCH=all CGO_ENABLED=0 $(GO) test -count=1 -timeout 40m -v -run 'TestBenchmarks$$' ./internal/mpi
	EXANET_DOCS=$(CURDIR)/docs PFD_MPI_BENCH=all CGO_ENABLED=0 $(GO) test -count=1 -timeout 40m -v -run 'TestMPIBenchmarks$$' ./internal/hosts

# All tests beside eight busy loops, those of processes and timing five times.
loaded: setup
	sh contrib/scripts/loaded.sh

# Virtual machines take every processor, so their tests run after the others: those
# that need no more than QEMU and Debian's kernel. `make guests` runs all.
GUESTS = TestTwoGuests|TestKilled|TestReboot|TestNewcomer|TestUIO|TestNoIOMMUStock|TestRegisterAccesses|TestHostileDriver|TestServerStopped|TestLinkCut|TestMemoryOfAGuest|TestThroughASmallWindow|TestTraceOnKernels
guests-race:
	CGO_ENABLED=1 $(GO) test -race -timeout 40m -run '$(GUESTS)' ./internal/guests

# The packages that take longest begin first: one that began last would run alone.
SLOWEST = ./internal/hostile ./vfio/mediate ./internal/sim ./internal/workload/bench ./internal/packaging
race:
	CGO_ENABLED=1 $(GO) test -race -timeout 40m $(SLOWEST) $$($(GO) list ./... | grep -v /internal/guests$$)

# exanet-hostd is a module of its own.
hostd-race:
	cd hostd && CGO_ENABLED=1 $(GO) test -race -timeout 10m ./...

# Takes some minutes, on an idle machine, and writes docs/benchmarks.md and docs/evaluation.md;
# every sample, and one HTML file, into bin/bench. As root, tracing and memory as well, beside
# a pfd from which the probe point is left out.
bench: build
	@$(BUILD) -overlay internal/workload/bench/testdata/untraced.json -o bin/pfd-untraced ./cmd/pfd
	@bin/exanetctl bench all --pfd bin/pfd $$([ $$(id -u) = 0 ] && echo --untraced bin/pfd-untraced --bpffs /sys/fs/bpf/exanet-bench) --docs docs --dir bin/bench
	@EXANET_DOCS=$(CURDIR)/docs go test ./internal/guests -run '^$$' -bench 'Guests|Peers' -benchtime 1x -timeout 30m

# The CPU profile of pfd under `bench faults`, by which every build of pfd is optimized
# (-pgo=auto). `go tool pprof -comments cmd/pfd/default.pgo` prints the commit that it was made
# at. Takes some minutes, on an idle machine.
pgo: build
	rm -rf bin/pgo && mkdir bin/pgo
	$(BUILD) -pgo=off -tags profile -o bin/pfd-profile ./cmd/pfd
	PFD_PROFILES=bin/pgo bin/exanetctl bench faults --pfd bin/pfd-profile
	$(GO) tool pprof -proto -add_comment "make pgo at $$(git describe --always --dirty --abbrev=40 --exclude '*')" \
		-output cmd/pfd/default.pgo bin/pgo/*

# The picture of the live page that README.md shows: needs a Chromium (setup.sh test).
pictures: setup
	STRICT=1 PFD_SHOTS=$(CURDIR)/docs $(GO) test -count=1 -run 'TestPictures$$' ./cmd/exanetctl

fuzz:
	sh contrib/scripts/fuzz.sh $(FUZZTIME)

# The eBPF programs' objects, which are committed: needs clang and libbpf-dev.
generate:
	$(GO) generate ./trace/probe

# libexanet, for programs in C, and the libfabric provider into bin/. CC and CFLAGS are taken
# as they are.
c:
	sh contrib/scripts/libexanet.sh bin
	sh contrib/scripts/fi.sh bin

# Manual pages and completion scripts, from the programs' own command trees.
man:
	rm -rf bin/man && mkdir -p bin/man
	CGO_ENABLED=0 $(GO) run -pgo=off -tags man ./cmd/pfd bin/man
	CGO_ENABLED=0 $(GO) run -pgo=off -tags man ./cmd/exanetctl bin/man
	cd hostd && CGO_ENABLED=0 $(GO) run -pgo=off -tags man . ../bin/man
	cp contrib/man/exanet.7 libexanet/exanet.3 libexanet/exanet_stream.3 libexanet/exanet_gsas.3 libexanet/exanet_dht.3 bin/man/

completion: build
	mkdir -p bin/completion
	bin/exanetctl completion bash >bin/completion/exanetctl.bash
	bin/exanetctl completion zsh >bin/completion/_exanetctl
	bin/exanetctl completion fish >bin/completion/exanetctl.fish

# Debian packages into bin: exanet, and libexanet1 and libexanet-dev where there is a C compiler,
# and libexanet-fi where there are libfabric's headers.
# nfpm is pinned in contrib/scripts/tools.mod.
deb: build man completion
	sh contrib/scripts/deb.sh

setup:
	@$(SETUP)

clean:
	rm -rf bin .cache
	$(GO) clean -testcache
