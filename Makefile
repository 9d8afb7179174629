# `make` lists what there is. The two that matter: up and test.
SHELL := /bin/bash
BIN   := bin
TOOLS := .tools
BUILD := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
VERSION ?= 0.1.0-dev
PEERS ?= direct,tmux,dtach,screen,berth
LDFLAGS := -s -w -X berth.version=$(VERSION) -X berth.build=$(BUILD)
GO    := go
export GOFLAGS := -buildvcs=false

.DEFAULT_GOAL := help
.PHONY: help up build test lint unit bench fuzz test-long clean tools packages golden lab lab-down

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

up: build ## build everything into bin/ and start the daemon
	@$(BIN)/berth up

build: ## build the static binaries into bin/
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...

test: packages tools lab lint build ## everything that CI runs: install what is needed, lint, build, fuzz, test with -race
	./scripts/fuzz 60000x FuzzFrameReader FuzzCreateRequest FuzzHookLines FuzzSettings FuzzRelease FuzzParseRequest
	$(TOOLS)/gotestsum --format pkgname-and-test-fails -- -race -timeout 15m $(TESTFLAGS) ./...

unit: ## the tests alone, without -race and without installing anything
	$(GO) test ./...

lint: tools ## gofmt, go vet, golangci-lint
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo 'gofmt: the files above are not formatted'; exit 1; }
	$(GO) vet ./...
	$(TOOLS)/golangci-lint run ./...

golden: ## write the generated documents and golden files again
	$(GO) test . ./internal/server ./environment ./internal/cli -update
	$(GO) test ./internal/cli -update-plans

bench: build ## measure sessions beside tmux, dtach and screen; writes docs/benchmarks.md
	@mkdir -p .bench
	python3 bench/sessions.py run --peers $(PEERS) --json .bench/sessions.json
	python3 bench/sessions.py report .bench/sessions.json > docs/benchmarks.md

fuzz: ## run each fuzz target for FUZZTIME (200000x: so many inputs)
	./scripts/fuzz $(or $(FUZZTIME),200000x)

test-long: ## long fuzzing and long crash campaigns
	./scripts/fuzz 3000000x
	BERTH_LONG=1 $(GO) test -race -timeout 60m ./cmd/berth/...

packages: ## install the programs that tests drive (as root, from the distribution)
	@./scripts/packages

tools: $(TOOLS)/gotestsum $(TOOLS)/golangci-lint ## build the development tools into .tools/

$(TOOLS)/gotestsum $(TOOLS)/golangci-lint: tools/go.mod tools/go.sum
	@mkdir -p $(TOOLS)
	cd tools && $(GO) build -o ../$(TOOLS)/ gotest.tools/gotestsum github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $(TOOLS)/gotestsum $(TOOLS)/golangci-lint

lab: packages ## prepare the Docker daemons that tests use, under .lab/
	@./scripts/lab prepare

lab-down: ## end every daemon of the lab
	@./scripts/lab down

clean: ## remove what was built; the daemon and its sessions are not touched
	rm -rf $(BIN) $(TOOLS) .bench
