# make test     everything a change must pass; installs what is missing
# make bench    the table of figures in the README
# make compare  ration beside its rivals, and the chart (QUICK=1: under two minutes)
# make soak     many times the random checks of make test, and ten million simulated decisions
GO ?= go
export GOTOOLCHAIN ?= local
# The modules beside the root: what they depend on is nobody's dependency.
MODULES = benchmarks integration grpclimit otellimit examples/frameworks examples/httpserver

.PHONY: test tools check unit fuzz bench compare soak

test: tools check unit fuzz

# Debian's redis-server, a C compiler for -race and the movable server clock, and chromium for the page of
# examples/httpserver.
tools:
	@sh internal/install-tools.sh

check:
	@bad=$$(gofmt -l .); if [ -n "$$bad" ]; then echo "gofmt: $$bad"; exit 1; fi
	$(GO) mod tidy -diff
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	@for m in $(MODULES); do echo "checking $$m"; \
		(cd $$m && $(GO) mod tidy -diff && $(GO) vet ./...) || exit 1; done

unit:
	RATION_REQUIRE_REDIS=1 $(GO) test -race -shuffle=on ./...
	$(GO) test -run SiteLogAgainstTheExactLog ./cmd/ration
	@for m in $(MODULES); do echo "testing $$m"; \
		(cd $$m && RATION_REQUIRE_REDIS=1 $(GO) test -race -shuffle=on ./...) || exit 1; done

# Counts, not times: when a time is over while an input is being tried, go test may fail
# with "context deadline exceeded" though nothing was found.
fuzz:
	$(GO) test -run '^$$' -fuzz '^FuzzDecode$$' -fuzztime 40000x .
	$(GO) test -run '^$$' -fuzz '^FuzzKeys$$' -fuzztime 5000x .
	$(GO) test -run '^$$' -fuzz '^FuzzReadLine$$' -fuzztime 70000x ./cmd/ration/internal/reqlog

bench:
	cd benchmarks && RATION_REQUIRE_REDIS=1 $(GO) test -count=1 -v -timeout 30m . -args -rounds 11 -calls 5000 | grep '^[|0-9]'
	$(GO) test -run '^$$' -bench 'RingAgainstRate|Local' -benchtime 200ms .

compare:
	cd benchmarks && $(GO) run ./compare $(if $(QUICK),-quick)

soak:
	RATION_REQUIRE_REDIS=1 RATION_CHECKS=5000 $(GO) test -race -run Property -timeout 60m .
	RATION_DECISIONS=10000000 $(GO) test -run 'Simulation|SteadyUse' -v -timeout 120m .
