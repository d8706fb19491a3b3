# make test   everything a change must pass; installs what is missing
# make bench  the table of figures in the README
GO ?= go
export GOTOOLCHAIN ?= local

.PHONY: test tools check unit fuzz bench soak

test: tools check unit fuzz

# Debian's redis-server, and a C compiler for -race and the movable server clock.
tools:
	@sh internal/install-tools.sh

check:
	@bad=$$(gofmt -l .); if [ -n "$$bad" ]; then echo "gofmt: $$bad"; exit 1; fi
	$(GO) mod tidy -diff
	cd benchmarks && $(GO) mod tidy -diff
	$(GO) vet ./...
	cd benchmarks && $(GO) vet ./...
	$(GO) tool staticcheck ./...

unit:
	RATION_REQUIRE_REDIS=1 $(GO) test -race -shuffle=on ./...
	cd benchmarks && RATION_REQUIRE_REDIS=1 $(GO) test ./...

FUZZTIME ?= 5s
fuzz:
	$(GO) test -run '^$$' -fuzz '^FuzzDecode$$' -fuzztime $(FUZZTIME) .
	$(GO) test -run '^$$' -fuzz '^FuzzKeys$$' -fuzztime $(FUZZTIME) .
	$(GO) test -run '^$$' -fuzz '^FuzzReadLine$$' -fuzztime $(FUZZTIME) ./cmd/ration

bench:
	cd benchmarks && RATION_REQUIRE_REDIS=1 $(GO) test -count=1 -v -timeout 30m . -args -rounds 11 -calls 5000 | grep "^[|0-9]"

# Many times the random checks of make test.
soak:
	RATION_REQUIRE_REDIS=1 $(GO) test -race -run Property -timeout 60m . -rapid.checks=5000
