# make demo      install what is missing, build, play the main job on the terminal
# make down      stop what make demo left running
# make test      install what is missing, run every test, privileged ones included
# make test-kubernetes  install what is missing, run the tests that have a cluster of their own
# make setup     install what is missing    make build     the programs, in bin
# make lint      formatting and go vet      make bench     measure
# make image     an image for Kubernetes, bin/sallyport-image.tar (IMAGE=registry.example.com/sallyport:1)
# make generate  BPF objects and schemas    make clean     remove bin
# make fuzz      every fuzz target for ten minutes each (FUZZTIME=30s FUZZ=resolver for less)
# make soak      two minutes of mixed traffic and faults through the gateway, and a minute without Vault, with the race detector;
#                then the end-to-end tests with loops, each loop as long as it can be
# make long      what takes half an hour: bodies of 10 GB, and connections that idle for 20 minutes
# make bench-datapath  measure the guard of the network, as root, after make setup
# make bench-sandbox   measure the life of sandboxes beside plain Docker, likewise
SHELL   := /bin/sh
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
CACHE   := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sallyport
export CGO_ENABLED ?= 0
MAKEFLAGS += --no-print-directory
export PATH := $(PATH):/usr/local/go/bin

# The name of the image that `make image` writes.
IMAGE   ?= localhost/sallyport:devel

.PHONY: setup build image demo down test test-kubernetes fuzz soak long bench bench-datapath bench-sandbox lint generate clean

# What setup.sh makes lies in the cache, by version; sallyport looks beside itself.
link = @mkdir -p bin && ln -sfn $(CACHE)/runsc bin/runsc && ln -sfn $(CACHE)/base.tar bin/base.tar

setup:
	@internal/setup/setup.sh demo
	$(link)

build:
	@mkdir -p bin
	@$(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/sallyport ./cmd/sallyport
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o bin/sallyport-agent ./cmd/sallyport-agent
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o bin/sallyport-cni ./cmd/sallyport-cni

image:
	@mkdir -p bin
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/image/ ./cmd/sallyport ./cmd/sallyport-cni
	@$(GO) run ./internal/setup/ociimage -o bin/sallyport-image.tar -name $(IMAGE) bin/image/sallyport bin/image/sallyport-cni

demo: setup build
	@$(GO) build -o bin/testhost ./internal/test/testhost
	@$(GO) build -o bin/demo ./examples/demo
	@bin/demo -bin bin up

down:
	@if [ -x bin/demo ]; then bin/demo -bin bin down; else echo "no demo is there"; fi

test:
	@internal/setup/setup.sh test
	$(link) && for name in runtimes.tar browsers.tar engine; do ln -sfn $(CACHE)/$$name bin/$$name; done
	@internal/setup/test.sh

# Their files have the build tag kubernetes, so that make test leaves them out.
test-kubernetes:
	@internal/setup/setup.sh kubernetes
	$(link)
	@internal/setup/kubernetes/test.sh

fuzz:
	@internal/setup/fuzz.sh

# SALLYPORT_SOAK=10m is longer, SALLYPORT_SEED=N plays an earlier run's dice.
soak:
	@CGO_ENABLED=1 SALLYPORT_SOAK=$${SALLYPORT_SOAK:-2m} $(GO) test -race ./gateway -run 'Test(Soak|VaultAway|CrowdOfConnections|RequestsThatBeginDuringAChange|StuckAnswersHoldBoundedMemory)$$' -count=1 -v -timeout 1h
	@SALLYPORT_SOAK=1 $(GO) test ./memory/keeper -run 'TestMillionFiles$$' -count=1 -v -timeout 30m
	@SALLYPORT_SOAK=1 $(GO) test ./memory/history -run 'TestManyEntries$$' -count=1 -v
	@SALLYPORT_SOAK=1 $(GO) test ./audit/tree -run 'Test(Kill|EachByte)$$' -count=1 -v
	@SALLYPORT_SOAK=1 $(GO) test ./sandbox/manager -run 'TestModel(Faults)?$$' -count=1 -v -timeout 30m
	@SALLYPORT_SOAK=1 $(GO) run ./internal/test/suite -workers 2 -only '/e2e Test(Sleep|Restarts|Killed|Model)$$'

# SALLYPORT_BODY is in bytes.
long:
	@SALLYPORT_IDLE=$${SALLYPORT_IDLE:-20m} SALLYPORT_BODY=$${SALLYPORT_BODY:-10000000000} \
		$(GO) test ./gateway -run 'TestLargeBodies$$|TestIdlingInEarnest$$' -count=1 -v -parallel 8 -timeout 3h

bench: build
	@$(GO) run ./internal/bench -o docs/reference/bench.md
	@$(GO) run ./internal/bench/policy -o docs/reference/bench-policy.md
	@echo "benches of their own: make bench-datapath, some three minutes; make bench-sandbox, some ten"

bench-datapath:
	@$(GO) run ./internal/bench/datapath -o docs/reference/bench-datapath.md

bench-sandbox:
	@$(GO) run ./internal/bench/sandbox -o docs/reference/bench-sandbox.md

lint:
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these"; exit 1; }
	@$(GO) vet ./...

generate:
	@internal/setup/setup.sh generate
	@$(GO) generate ./...

clean:
	@rm -rf bin
